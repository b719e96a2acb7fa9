"""What every host must do, whatever its operating system. A host's tests subclass this and bring a `machine`.

A machine is a throw-away computer with a NIC that holds the Node IPs and routes of both families, and with a bridge
interface and a gateway interface; it can be looked at and interfered with by means that are not ours.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, ClassVar, Protocol

import pytest
from uplink_contract import UplinkContract

from windlass.host.plans import (
    ExternalPort,
    HostAddress,
    HostChange,
    HostNames,
    HostPlan,
    Neighbour,
    NodePort,
    Route,
    diff,
    plan,
    plan_peer,
)
from windlass.host.protocol import OTHER_INTERFACES, AttachedLink, Host, HostError, PodLink
from windlass.host.services import plan_services
from windlass.model import services
from windlass.model.families import Family, family_of

if TYPE_CHECKING:
    from windlass.model.families import IPAddress
    from windlass.model.nodes import NodeState


class Machine(Protocol):
    names: HostNames
    state: NodeState  # of the families that the host forwards
    userspace: bool  # its switch runs the userspace datapath
    node_ips: tuple[IPAddress, ...]
    refused_gateway: str  # what the host says of a gateway in no network of the Pod, as a regular expression

    def open_host(self) -> Host: ...
    def make_bridge(self) -> None: ...
    def remove_bridge(self) -> None: ...
    def new_sandbox(self) -> str: ...
    def remove_sandbox(self, path: str) -> None: ...
    def add_foreign_route(self, destination: str) -> None: ...
    def add_conflicting_route(self, destination: str) -> None: ...
    def has_route(self, destination: str) -> bool: ...
    def take_route_away(self, destination: str) -> None: ...
    def holders(self, address: str) -> set[str]: ...
    def give_address(self, interface: str, address: str) -> None: ...
    def take_address(self, interface: str, address: str) -> None: ...


def planned(machine: Machine) -> HostPlan:
    return plan(machine.state, machine.names, 1500, userspace=machine.userspace)


def pod_link(machine: Machine, sandbox: str, name: str = "pod-1") -> PodLink:
    addresses = (ip_interface("10.0.1.7/24"), ip_interface("2001:db8:1::7/64"))
    gateways = (ip_address("10.0.1.1"), ip_address("2001:db8:1::1"))
    families = machine.state.node.families
    return PodLink(
        namespace=sandbox,
        interface="eth0",
        host_interface=name,
        mac="0a:58:0a:00:01:07",
        addresses=tuple(address for address in addresses if family_of(address.ip) in families),
        gateways=tuple(gateway for gateway in gateways if family_of(gateway) in families),
        mtu=1450,
        link_mtu=1500,
        userspace=machine.userspace,
    )


async def attach(host: Host, link: PodLink) -> None:
    await host.pods.attach(link)
    await host.pods.appeared(link.host_interface, link.mtu)


class PlanContract:
    """The host applies the difference between a plan and what is installed."""

    async def test_applied_items_are_installed_and_the_difference_is_empty(self, host: Host, machine: Machine):
        desired = planned(machine)
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)

        assert await host.apply(diff(await host.installed(machine.names), desired)) == ()

        assert (await host.installed(machine.names)).items == desired.items
        assert not diff(await host.installed(machine.names), desired)

    async def test_a_restart_finds_everything_in_place(self, host: Host, machine: Machine):
        desired = planned(machine)
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        await host.apply(diff(await host.installed(machine.names), desired))

        again = machine.open_host()
        try:
            assert not diff(await again.installed(machine.names), desired)
        finally:
            await again.close()

    async def test_only_the_routes_of_a_removed_peer_are_removed(self, host: Host, machine: Machine):
        desired = planned(machine)
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        await host.apply(diff(await host.installed(machine.names), desired))

        leaving = plan_peer(machine.state.node, machine.state.peers["far"], machine.names)
        assert await host.apply(diff(leaving, HostPlan())) == ()

        assert (await host.installed(machine.names)).items == desired.items - leaving.items
        assert await host.apply(diff(leaving, HostPlan())) == ()  # removing it twice is not an error

    async def test_routes_of_others_are_ignored(self, host: Host, machine: Machine):
        machine.add_foreign_route("10.250.0.0/16")
        before = (await host.installed(machine.names)).items

        assert not any(isinstance(item, Route) for item in before)
        await host.apply(diff(await host.installed(machine.names), HostPlan()))
        assert machine.has_route("10.250.0.0/16")

    async def test_a_refused_item_is_reported_and_the_others_are_applied(self, host: Host, machine: Machine):
        taken = Route(ip_network("10.250.0.0/16"), "windlass-gw0", via=ip_address("10.250.0.1"), onlink=True)
        nowhere = HostAddress("no-such", ip_interface("10.9.9.9/24"))
        desired = planned(machine)
        machine.add_conflicting_route("10.250.0.0/16")
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)

        change = diff(await host.installed(machine.names), desired)
        problems = await host.apply(replace(change, added=change.added | {taken, nowhere}))

        assert len(problems) == 2
        assert "could not add route 10.250.0.0/16 via 10.250.0.1 on windlass-gw0: " in problems[1]
        assert problems[0] == "there is no interface no-such for address 10.9.9.9/24 on no-such"
        assert (await host.installed(machine.names)).items == desired.items

    async def test_another_gateway_address_takes_no_route_away(self, host: Host, machine: Machine):
        gateway = machine.names.gateway
        settings = planned(machine).settings
        for address in ("10.0.1.1/24", "10.0.2.1/24", "10.0.2.1/16", "2001:db8:1::1/64", "2001:db8:1::1/80"):
            mine = ip_interface(address)
            if family_of(mine) not in machine.state.node.families:
                continue
            far = ip_network("10.0.9.0/24" if mine.version == 4 else "2001:db8:a::/64")
            route = Route(far, gateway, via=far.network_address + 1, onlink=True)
            desired = HostPlan(settings, frozenset((route, HostAddress(gateway, mine))))
            assert await host.apply(diff(await host.installed(machine.names), desired)) == ()
            assert (await host.installed(machine.names)).items == desired.items

    async def test_a_neighbour_is_set_changed_and_removed(self, host: Host, machine: Machine):
        gateway = machine.names.gateway
        await host.apply(HostChange(settings=tuple(planned(machine).settings)))
        for mac in ("aa:bb:cc:dd:ee:ff", "aa:bb:cc:dd:ee:01"):
            addresses = [ip_address(text) for text in ("169.254.0.253", "fd00::253")]
            families = machine.state.node.families
            wanted = frozenset(Neighbour(gateway, a, mac) for a in addresses if family_of(a) in families)
            desired = HostPlan(items=wanted)
            assert await host.apply(diff(await host.installed(machine.names), desired)) == ()
            assert (await host.installed(machine.names)).items == wanted
        await host.apply(diff(await host.installed(machine.names), HostPlan()))
        assert (await host.installed(machine.names)).items == frozenset()


class ServiceContract:
    """The items of Services are added and removed like the rest of a plan."""

    PORTS: ClassVar = frozenset(
        NodePort(family, protocol, port)
        for family in Family
        for protocol in services.Protocol
        for port in (30080, 30081)
    ) | {
        ExternalPort(ip_address("203.0.113.80"), services.Protocol.TCP, 80),
        ExternalPort(ip_address("2001:db8:cb::80"), services.Protocol.UDP, 53),
    }

    def desired(self, machine: Machine, *networks: str) -> HostPlan:
        cidrs = (ip_network("10.96.0.0/16"), ip_network("fd00:10:96::/112"))
        shared = plan_services(machine.state.node, machine.names, cidrs, tuple(map(ip_network, networks)), mtu=1450)
        return planned(machine) | shared | HostPlan(items=self.PORTS)

    async def test_applied_items_are_installed_and_found_after_a_restart(self, host: Host, machine: Machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        for networks in ((), ("192.0.2.5/32", "127.0.0.0/8", "2001:db8::/32"), ("2001:db8::5/128",)):
            desired = self.desired(machine, *networks)
            assert await host.apply(diff(await host.installed(machine.names), desired)) == ()
            assert (await host.installed(machine.names)).items == desired.items
            again = machine.open_host()
            try:
                assert not diff(await again.installed(machine.names), desired)
            finally:
                await again.close()

    async def test_removing_a_port_keeps_the_others(self, host: Host, machine: Machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        desired = self.desired(machine)
        await host.apply(diff(await host.installed(machine.names), desired))
        for port in self.PORTS:
            change = diff(HostPlan(items=frozenset((port,))), HostPlan())
            assert await host.apply(change) == ()
            assert await host.apply(change) == ()  # removing it twice is not an error
            assert (await host.installed(machine.names)).items == desired.items - {port}
            assert await host.apply(diff(await host.installed(machine.names), desired)) == ()

    async def test_without_services_nothing_of_them_remains(self, host: Host, machine: Machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        without = planned(machine)
        await host.apply(diff(await host.installed(machine.names), self.desired(machine)))
        for _ in range(2):
            assert await host.apply(diff(self.desired(machine), without)) == ()
            assert (await host.installed(machine.names)).items == without.items


class PodContract:
    """A Pod's link is created completely or not at all."""

    async def test_attached_it_is_as_asked_for_and_again_is_the_same(self, host: Host, machine: Machine):
        link = pod_link(machine, machine.new_sandbox())

        await attach(host, link)
        assert await host.pods.check(link) == ()
        await attach(host, link)

        assert await host.pods.check(link) == ()
        assert await host.pods.links() == (AttachedLink("pod-1", "eth0", link.namespace),)

    async def test_a_difference_is_described_in_a_sentence(self, host: Host, machine: Machine):
        link = pod_link(machine, machine.new_sandbox())
        assert await host.pods.check(link) == ("there is no interface pod-1",)
        await attach(host, link)

        (told,) = await host.pods.check(replace(link, mtu=1400))
        assert told == f"eth0 in {link.namespace}: MTU 1450 instead of 1400"
        (told,) = await host.pods.check(replace(link, gateways=(ip_address("10.0.1.2"),)))
        assert told.endswith(f"gateways {', '.join(map(str, link.gateways))} instead of 10.0.1.2")

    async def test_another_request_for_the_same_link_wins(self, host: Host, machine: Machine):
        link = pod_link(machine, machine.new_sandbox())
        await attach(host, link)
        other = replace(link, mtu=1300, addresses=(ip_interface("10.0.1.8/24"),), gateways=(ip_address("10.0.1.1"),))

        await attach(host, other)

        assert await host.pods.check(other) == ()

    async def test_detached_it_is_gone_and_gone_is_fine(self, host: Host, machine: Machine):
        link = pod_link(machine, machine.new_sandbox())
        await attach(host, link)

        await host.pods.detach("pod-1")
        assert await host.pods.links() == ()
        await host.pods.detach("pod-1")

        await attach(host, link)
        machine.remove_sandbox(link.namespace)
        await host.pods.detach("pod-1")
        assert await host.pods.links() == ()

    async def test_a_failure_leaves_nothing_behind(self, host: Host, machine: Machine):
        sandbox = machine.new_sandbox()
        link = pod_link(machine, sandbox)
        for impossible, reason in (
            (replace(link, namespace=f"{sandbox}-gone"), "could not enter .*-gone: "),
            # In the middle, when the interface is there already: no address of the Pod is in the gateway's network.
            (replace(link, gateways=(ip_address("172.16.0.1"),)), machine.refused_gateway),
        ):
            with pytest.raises(HostError, match=reason):
                await host.pods.attach(impossible)
            assert await host.pods.links() == ()
        await attach(host, link)  # the name is free, on both sides

    async def test_many_at_once(self, host: Host, machine: Machine):
        links = [pod_link(machine, machine.new_sandbox(), f"pod-{i}") for i in range(8)]

        await asyncio.gather(*(attach(host, link) for link in links))
        assert [await host.pods.check(link) for link in links] == [()] * 8
        await asyncio.gather(*(host.pods.detach(link.host_interface) for link in links))

        assert await host.pods.links() == ()


class WatchContract:
    """A watch yields at once, and then all changes since the last item together."""

    async def test_a_watch_yields_everything_first_and_then_changes(self, host: Host, machine: Machine):
        async with aclosing(host.watch(machine.names)) as changes:
            assert await anext(changes) == {"eth0", "br-int", "windlass-gw0"}

            await host.uplink.adopt("eth0", "br-int", machine.node_ips)
            told = set()
            while not {"eth0", "br-int"} <= told:
                told |= await anext(changes)

    async def test_a_watch_reports_a_removed_and_added_bridge_interface(self, host: Host, machine: Machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        async with aclosing(host.watch(machine.names)) as changes:
            await anext(changes)
            machine.remove_bridge()
            assert "br-int" in await anext(changes)
            machine.make_bridge()
            assert "br-int" in await anext(changes)
            await host.uplink.adopt("eth0", "br-int", machine.node_ips)
            assert machine.holders("192.0.2.5") == {"br-int"}

    async def test_a_watch_reports_a_removed_route(self, host: Host, machine: Machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        desired = planned(machine)
        await host.apply(diff(await host.installed(machine.names), desired))
        async with aclosing(host.watch(machine.names)) as changes:
            await anext(changes)
            machine.take_route_away("10.0.3.0/24")
            while "windlass-gw0" not in await anext(changes):
                pass
            assert await host.apply(diff(await host.installed(machine.names), desired)) == ()
            assert machine.has_route("10.0.3.0/24")

    async def test_a_watch_reports_an_address_of_another_interface(self, host: Host, machine: Machine):
        held = await host.held_addresses()
        assert set(machine.node_ips) <= held
        assert not any(address.is_loopback or address.is_link_local for address in held)
        async with aclosing(host.watch(machine.names)) as changes:
            await anext(changes)
            machine.give_address("lo", "198.51.100.7/32")
            while OTHER_INTERFACES not in await anext(changes):
                pass
            assert await host.held_addresses() == held | {ip_address("198.51.100.7")}
            machine.take_address("lo", "198.51.100.7/32")
            while OTHER_INTERFACES not in await anext(changes):
                pass
            assert await host.held_addresses() == held


class HostContract(PlanContract, UplinkContract, PodContract, WatchContract):
    pass
