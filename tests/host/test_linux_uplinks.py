"""Moving the uplink on Linux: after any failure the Node still has its addresses and routes."""

from __future__ import annotations

import errno
import itertools
import re
import subprocess
from contextlib import suppress
from ipaddress import ip_interface
from typing import TYPE_CHECKING

import pytest
from host_machines import LinuxMachine, ip, ip_json, reaches, requires_namespaces
from moved_items import EMPTY, CrashError, Faulty, seen

from disks import full, small_disk
from windlass.host.linux import records, settings, uplinks
from windlass.host.linux.netlink import Netlink, NetlinkError
from windlass.host.linux.records import RecordFile
from windlass.host.plans import HostChange, InterfaceSettings
from windlass.host.protocol import HostError
from windlass.model.families import Family

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.host.linux.hosts import LinuxHost

pytestmark = requires_namespaces


ENCAPSULATED = "route add 10.8.0.0/16 encap ip id 7 dst 198.51.100.1 via 192.0.2.1"
CHANGES = 15  # there are at least so many steps to a move


@pytest.fixture
def record_file(machine: LinuxMachine) -> Path:
    return machine.state_directory / "uplink.json"


def test_moved_items_look_the_same_to_the_ip_command(machine: LinuxMachine, record_file: Path):
    before = seen("eth0")
    with Netlink() as netlink:
        uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
        assert seen("eth0") == EMPTY
        assert seen("br-int") == before
        (bridge,) = ip_json("link", "show", "br-int")
        assert (bridge["address"], bridge["mtu"]) == ("02:00:00:00:00:05", 1500)
        uplinks.release(netlink, RecordFile(record_file), "eth0", "br-int")
    assert seen("eth0") == before
    assert seen("br-int") == EMPTY
    assert not record_file.exists()


def test_a_repeated_move_changes_and_writes_nothing(machine: LinuxMachine, record_file: Path):
    with Netlink() as netlink:
        uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
    written = record_file.stat().st_ino
    with Faulty(1, CrashError()) as netlink:
        uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
        assert netlink.changes == 0
    assert record_file.stat().st_ino == written  # a new record is a new file


def test_the_uplink_is_restored_whichever_change_is_refused(machine: LinuxMachine, record_file: Path):
    before = seen("eth0")
    for at in itertools.count(1):
        machine.remake_bridge()
        told = ""
        with Faulty(at, NetlinkError(errno.EIO, "refused by the test")) as netlink:
            try:
                uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
            except HostError as error:
                told = str(error)
        if not told:
            break
        assert re.search("could not .*: refused by the test: the addresses are back on eth0", told)
        assert seen("eth0") == before, f"change {at}"
        assert seen("br-int")["addresses"] == [], f"change {at}"
        assert not record_file.exists()
    assert at > CHANGES


def test_the_next_attempt_completes_a_move_that_crashed_at_any_step(machine: LinuxMachine, record_file: Path):
    before = seen("eth0")
    crashed = True
    for at in itertools.count(1):
        machine.remake_bridge()
        with Faulty(at, CrashError()) as netlink, suppress(CrashError):
            uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
            crashed = False
        held = ip("address")
        assert all(f" {address}/" in held for address in machine.node_ips), f"change {at}"
        with Netlink() as netlink:
            uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
            assert seen("br-int") == before, f"change {at}"
            assert seen("eth0") == EMPTY, f"change {at}"
            uplinks.release(netlink, RecordFile(record_file), "eth0", "br-int")
        if not crashed:
            break
    assert at > CHANGES


def test_the_next_release_completes_one_that_crashed_at_any_step(machine: LinuxMachine, record_file: Path):
    before = seen("eth0")
    crashed = True
    for at in itertools.count(1):
        with Netlink() as netlink:
            uplinks.adopt(netlink, RecordFile(record_file), "eth0", "br-int", machine.node_ips)
        with Faulty(at, CrashError()) as netlink, suppress(CrashError):
            uplinks.release(netlink, RecordFile(record_file), "eth0", "br-int")
            crashed = False
        with Netlink() as netlink:
            uplinks.release(netlink, RecordFile(record_file), "eth0", "br-int")
        assert seen("eth0") == before, f"change {at}"
        if not crashed:
            break
    assert at > CHANGES


@pytest.mark.parametrize(
    ("preparation", "refused"),
    [
        ("ip link add name br-int type veth peer name br-far", None),
        # An interface that does not take the MTU of the uplink, or its MAC, or an IPv6 address; a route that the kernel
        # would not accept a second time.
        ("ip tuntap add br-int mode tap; ip link set eth0 mtu 65535", "set the MTU of br-int to 65535: mtu greater"),
        ("ip link add br-int link eth0 type macvlan mode bridge", "set the MAC of br-int to .*: .* in use"),
        (
            "ip link add name br-int type veth peer name br-far; echo 1 >/proc/sys/net/ipv6/conf/br-int/disable_ipv6",
            "add address 2001:db8::5/64 to br-int: .*IPv6 is disabled on this device",
        ),
        (
            """ip link add name br-int type veth peer name br-far
            ip route add 172.16.0.1 dev eth0
            ip route add 172.17.0.0/16 via 172.16.0.1 dev eth0
            ip route del 172.16.0.1 dev eth0""",
            "add route 172.17.0.0/16 via 172.16.0.1 to br-int: Nexthop has invalid gateway",
        ),
    ],
    ids=["nothing", "mtu", "mac", "address", "route"],
)
async def test_a_move_that_the_kernel_refuses_is_reverted_and_reported(
    host: LinuxHost, machine: LinuxMachine, preparation, refused
):
    machine.remove_bridge()
    subprocess.run(["sh", "-ec", preparation], check=True)  # noqa: ASYNC221
    before = seen("eth0")
    if refused is None:
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        return
    with pytest.raises(HostError, match=f"could not {refused}.*: the addresses are back on eth0"):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    assert seen("eth0") == before
    assert seen("br-int")["addresses"] == []


async def test_after_a_release_the_kernel_receives_packets_again(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    await host.apply(HostChange(settings=(InterfaceSettings("eth0", kernel_ingress=False),)))
    assert not reaches("192.0.2.1")

    await host.uplink.release("eth0", "br-int")

    assert reaches("192.0.2.1")


async def test_an_address_added_to_the_nic_later_is_moved(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    ip("address", "add", "198.18.0.1/24", "dev", "eth0")

    adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink

    assert ip_interface("198.18.0.1/24") in adopted.addresses
    assert machine.holders("198.18.0.1") == {"br-int"}


async def test_an_address_removed_from_the_bridge_interface_stays_removed(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    ip("address", "delete", "192.0.2.77/24", "dev", "br-int")
    ip("address", "delete", "192.0.2.5/24", "dev", "br-int")

    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    machine.remove_bridge()
    machine.make_bridge()
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)

    assert machine.holders("192.0.2.77") == set()
    assert machine.holders("192.0.2.5") == {"br-int"}  # that of the Node always does


async def test_items_that_the_kernel_removed_with_a_link_down_are_restored(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    before = seen("br-int")["routes"]
    ip("link", "set", "br-int", "down")
    assert seen("br-int")["routes"] != before

    await host.uplink.adopt("eth0", "br-int", machine.node_ips)

    assert seen("br-int")["routes"] == before
    assert machine.holders("2001:db8::5") == {"br-int"}


async def test_an_immovable_route_stops_the_first_adoption_and_is_reported_later(
    host: LinuxHost, machine: LinuxMachine
):
    encapsulated = f"{ENCAPSULATED} dev eth0".split()
    ip(*encapsulated)
    before = seen("eth0")
    with pytest.raises(HostError, match=r"10\.8\.0\.0/16 by eth0 uses an encapsulation.*was not changed"):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    assert seen("eth0") == before
    assert await host.uplink.needs_wire("eth0", "br-int", machine.node_ips)

    ip("route", "delete", "10.8.0.0/16")
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    ip(*encapsulated, "onlink")
    ip("address", "add", "198.18.0.1/24", "dev", "eth0")
    (problem,) = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems

    assert "10.8.0.0/16 by eth0 uses an encapsulation" in problem
    assert machine.holders("198.18.0.1") == machine.holders("192.0.2.5") == {"br-int"}
    assert not await host.uplink.needs_wire("eth0", "br-int", machine.node_ips)


async def test_a_later_refusal_of_the_kernel_is_reported_and_the_rest_moves(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    before = seen("br-int")
    ip("route", "add", "172.16.0.1", "dev", "eth0")
    ip("route", "add", "172.17.0.0/16", "via", "172.16.0.1", "dev", "eth0")
    ip("route", "delete", "172.16.0.1", "dev", "eth0")
    ip("address", "add", "198.18.0.1/24", "dev", "eth0")

    for _ in range(2):
        (problem,) = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems
        assert "could not add route 172.17.0.0/16 via 172.16.0.1 to br-int: Nexthop has invalid gateway" in problem
        assert machine.holders("198.18.0.1") == {"br-int"}
        assert seen("br-int")["routes"] == before["routes"]


async def test_with_ipv6_switched_off_on_the_bridge_interface_ipv4_stays(host: LinuxHost, machine: LinuxMachine):
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    settings.set_sysctl(Family.IPV6, "br-int", "disable_ipv6", 1)

    problems = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems

    assert any("add address 2001:db8::5/64 to br-int: " in problem for problem in problems)
    assert machine.holders("192.0.2.5") == {"br-int"}
    assert not await host.uplink.needs_wire("eth0", "br-int", machine.node_ips)

    settings.set_sysctl(Family.IPV6, "br-int", "disable_ipv6", 0)
    assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems == ()
    assert machine.holders("2001:db8::5") == {"br-int"}


async def test_an_unreadable_record_is_ignored(host: LinuxHost, machine: LinuxMachine, record_file: Path):
    adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink
    record_file.write_text("{")  # noqa: ASYNC240

    with pytest.raises(HostError, match=f"{record_file} does not say which one had it: set `uplink`"):
        await host.uplink.find("br-int", machine.node_ips)
    assert await host.uplink.find("br-int", machine.node_ips, "eth0") == adopted
    assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink == adopted
    assert records.load(record_file) is not None


async def test_items_added_while_the_disk_is_full_are_recorded_later(
    host: LinuxHost, machine: LinuxMachine, record_file: Path
):
    with small_disk(machine.state_directory) as disk:
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        with full(disk):
            ip("address", "add", "198.18.0.1/24", "dev", "eth0")
            ip("route", "add", "172.17.0.0/16", "via", "198.18.0.9", "dev", "eth0")
            for _ in range(2):
                (problem,) = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems
                assert f"could not write the record {record_file}: No space left on device" in problem
            assert machine.holders("198.18.0.1") == {"br-int"}
            before = seen("br-int")
        assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems == ()

        machine.remake_bridge()
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        assert seen("br-int") == before


async def test_items_removed_while_the_disk_is_full_stay_removed(host: LinuxHost, machine: LinuxMachine):
    with small_disk(machine.state_directory) as disk:
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        with full(disk):
            ip("address", "add", "198.18.0.1/24", "dev", "eth0")
            await host.uplink.adopt("eth0", "br-int", machine.node_ips)
            for address in ("198.18.0.1/24", "192.0.2.77/24"):
                ip("address", "delete", address, "dev", "br-int")
            await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        assert machine.holders("198.18.0.1") == machine.holders("192.0.2.77") == set()
