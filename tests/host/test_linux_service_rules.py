"""Rules, routes and settings for Services on a Linux host: installed, found, repaired and removed, as `nft` shows."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from host_machines import ip, requires_namespaces
from service_machines import (
    EXTERNAL,
    EXTERNAL6,
    NAMES,
    TCP,
    UDP6,
    ServiceMachine,
    apply,
    desired,
    nft,
    requires_nft,
    requires_nftables,
    service_host,
    service_node,
    sysctl,
)

from windlass.host.linux.watches import InterfaceWatch
from windlass.host.plans import ExternalPort, HostPlan, NodePort, diff
from windlass.model.families import Family
from windlass.model.services import Protocol

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

pytestmark = [requires_namespaces, requires_nftables]
machine, host = service_node, service_host  # the fixtures


async def test_applied_items_are_installed_and_found_after_a_restart(host: LinuxHost, machine: ServiceMachine):
    wanted = desired(TCP, UDP6, EXTERNAL, EXTERNAL6, NodePort(Family.IPV4, Protocol.SCTP, 31000))
    for networks in ((), ("192.0.2.5/32", "198.51.100.0/24", "127.0.0.0/8", "2001:db8::/32")):
        wanted = desired(*(i for i in wanted.items if isinstance(i, NodePort | ExternalPort)), networks=networks)
        assert await apply(host, wanted) == ()
        assert (await host.installed(NAMES)).items == wanted.items
        again = machine.open_host()
        try:
            assert not diff(await again.installed(NAMES), wanted)
        finally:
            await again.close()


@requires_nft
async def test_a_node_port_is_one_element_of_a_set(host: LinuxHost, machine: ServiceMachine):
    before = desired(*(NodePort(Family.IPV4, Protocol.TCP, port) for port in range(31000, 31100)))
    assert await apply(host, before) == ()
    rules = nft("--handle", "--terse", "list", "table", "inet", "windlass")
    after = before | HostPlan(items=frozenset((TCP,)))
    assert await apply(host, after) == ()
    # The same sets, chains and rules, by their handles.
    assert nft("--handle", "--terse", "list", "table", "inet", "windlass") == rules
    assert "tcp . 30080" in nft("list", "set", "inet", "windlass", "node-ports-4")
    assert (await host.installed(NAMES)).items == after.items
    assert await host.apply(diff(after, before)) == ()
    assert await host.apply(diff(after, before)) == ()  # removing it twice is not an error
    assert (await host.installed(NAMES)).items == before.items


@requires_nft
async def test_after_removal_only_rules_of_others_remain(host: LinuxHost, machine: ServiceMachine):
    nft("add table inet foreign; add chain inet foreign c { type nat hook output priority 0; }")
    ip("rule", "add", "fwmark", "7", "lookup", "100")
    ip("route", "add", "10.250.0.0/16", "via", "192.0.2.1", "table", "100")
    foreign = nft("list", "ruleset"), ip("rule"), ip("-6", "rule"), ip("route", "show", "table", "100")
    assert await apply(host, desired(TCP, EXTERNAL)) == ()

    assert await apply(host, HostPlan()) == ()

    assert (nft("list", "ruleset"), ip("rule"), ip("-6", "rule"), ip("route", "show", "table", "100")) == foreign
    assert ip("route", "show", "table", "all", "proto", "87") == ip("neigh", "show", "proto", "87") == ""
    assert sysctl("windlass-gw0/route_localnet") == 0
    assert await host.apply(diff(desired(TCP, EXTERNAL), HostPlan())) == ()


@requires_nft
async def test_changes_by_other_programs_are_reverted(host: LinuxHost, machine: ServiceMachine):
    wanted = desired(TCP, EXTERNAL)
    assert await apply(host, wanted) == ()
    for spoil in (
        lambda: nft("flush ruleset"),
        lambda: nft("delete table inet windlass"),
        lambda: nft("flush chain inet windlass leave"),
        lambda: nft("insert rule inet windlass start accept"),
        lambda: nft("add chain inet windlass mine"),
        lambda: nft("add element inet windlass node-ports-4 { icmp . 7 }"),
        lambda: nft("add element inet windlass node-ports-4 { tcp . 7 }"),
        lambda: nft("delete element inet windlass external-ports-4 { 203.0.113.80 . tcp . 80 }"),
        lambda: ip("rule", "delete", "pref", "87"),
        lambda: ip("-6", "route", "flush", "table", "87"),
        lambda: sysctl("windlass-gw0/route_localnet", 0),
        lambda: sysctl("eth1/forwarding", 0),
    ):
        spoil()
        assert diff(await host.installed(NAMES), wanted)
        assert await apply(host, wanted) == ()
        assert (await host.installed(NAMES)).items == wanted.items


@requires_nft
async def test_a_watch_reports_a_flushed_ruleset(host: LinuxHost, machine: ServiceMachine):
    wanted = desired(TCP)
    assert await apply(host, wanted) == ()
    async with aclosing(host.watch(NAMES)) as changes:
        await anext(changes)
        nft("add table inet foreign; flush ruleset")
        assert NAMES.gateway in await asyncio.wait_for(anext(changes), 30)
        assert await apply(host, wanted) == ()
    assert not diff(await host.installed(NAMES), wanted)


async def test_a_watch_that_is_cancelled_while_it_opens_closes_its_sockets(host: LinuxHost, monkeypatch):
    run, opens_second = host._run, asyncio.Event()
    opened: list[InterfaceWatch] = []

    async def run_first(work, *arguments):
        if work is not InterfaceWatch:
            opens_second.set()
            await asyncio.Event().wait()
        opened.append(await run(work, *arguments))
        return opened[0]

    monkeypatch.setattr(host, "_run", run_first)

    async def follow() -> None:
        async with aclosing(host.watch(NAMES)) as changes:
            await anext(changes)

    following = asyncio.create_task(follow())
    await opens_second.wait()
    following.cancel()
    await asyncio.wait([following])
    assert [watch.fileno() for watch in opened] == [-1], "closed"
