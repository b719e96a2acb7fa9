"""Pod links on Linux, as `ip`, packet sockets and the Pod see them."""

from __future__ import annotations

import socket
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_contract import pod_link
from host_machines import LinuxMachine, ip, ip_json, reaches, requires_namespaces

from windlass.host.linux.namespaces import entered
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.settings import offloads
from windlass.host.plans import HostChange, InterfaceSettings
from windlass.host.protocol import HostError

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

pytestmark = requires_namespaces

ETH_P_ARP = 0x0806
ETH_P_ALL = 0x0003


async def test_a_pod_link_as_ip_shows_it(host: LinuxHost, machine: LinuxMachine):
    link = pod_link(machine, machine.new_sandbox())
    with entered(link.namespace):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")  # as some runtimes do  # noqa: ASYNC240

    await host.pods.attach(link)

    with entered(link.namespace):
        (eth0,) = ip_json("address", "show", "eth0")
        (lo,) = ip_json("link", "show", "lo")
        routes = ip_json("route", "show", "default") + ip_json("-6", "route", "show", "default")
        connected = ip_json("route", "show", "10.0.1.0/24") + ip_json("-6", "route", "show", "2001:db8:1::/64")
    assert (eth0["address"], eth0["mtu"], eth0["operstate"]) == ("0a:58:0a:00:01:07", 1500, "UP")
    usable = {f"{a['local']}/{a['prefixlen']}" for a in eth0["addr_info"] if not a.get("tentative")}
    assert usable >= {"10.0.1.7/24", "2001:db8:1::7/64"}
    assert "UP" in lo["flags"]
    assert {route["gateway"] for route in routes} == {"10.0.1.1", "2001:db8:1::1"}
    assert len(connected) == 2
    assert [route["metrics"] for route in routes + connected] == [[{"mtu": 1450}]] * 4

    (end,) = ip_json("address", "show", "pod-1")
    assert {"UP", "NOARP"} <= set(end["flags"])
    assert end["addr_info"] == []  # not even a link-local address


async def test_a_link_of_an_earlier_version_is_accepted(host: LinuxHost, machine: LinuxMachine):
    """Earlier versions gave both ends of the link the MTU of Pods."""
    link = pod_link(machine, machine.new_sandbox())
    await host.pods.attach(replace(link, link_mtu=link.mtu))
    assert await host.pods.check(link) == ()


@pytest.mark.parametrize("userspace", [True, False])
async def test_a_pod_does_its_own_checksums_for_the_userspace_datapath(
    host: LinuxHost, machine: LinuxMachine, *, userspace: bool
):
    link = replace(pod_link(machine, machine.new_sandbox()), userspace=userspace)
    await host.pods.attach(link)
    with entered(link.namespace), Netlink() as pod:
        assert offloads(pod, "eth0") is not userspace
    assert await host.pods.check(link) == ()
    assert len(await host.pods.check(replace(link, userspace=not userspace))) == (1 if userspace else 2)


async def test_the_kernel_does_not_answer_a_pod_and_the_switch_receives_its_packets(
    host: LinuxHost, machine: LinuxMachine
):
    """Without the filter the host would answer ARP for its own addresses on every interface."""
    ip("address", "add", "10.0.1.1/24", "dev", "windlass-gw0")
    ip("link", "set", "windlass-gw0", "up")
    link = pod_link(machine, machine.new_sandbox())
    await host.pods.attach(link)
    ip("link", "set", "pod-1", "arp", "on")  # so that only the filter prevents it

    with packet_socket("pod-1", ETH_P_ALL) as port:
        with entered(link.namespace):
            assert not reaches("10.0.1.1")
        requests = received(port, ETH_P_ARP)
    assert [target for _, target in requests][:1] == ["10.0.1.1"]
    assert {sender for sender, _ in requests} == {"10.0.1.7"}  # no reply

    await host.apply(HostChange(settings=(InterfaceSettings("pod-1", kernel_ingress=True),)))
    with packet_socket("pod-1", ETH_P_ALL) as port:
        with entered(link.namespace):
            ip("neighbour", "flush", "all")  # it sends a new request
            reaches("10.0.1.1")
        assert "10.0.1.1" in {sender for sender, _ in received(port, ETH_P_ARP)}


async def test_without_the_filter_the_uplink_also_delivers_to_the_host(host: LinuxHost, machine: LinuxMachine):
    """After the move the NIC has no address, but a host answers for its addresses on every interface."""
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with listener, packet_socket("eth0", ETH_P_ALL) as port:
        listener.bind(("192.0.2.5", 7000))
        listener.settimeout(5)
        send_from_the_wire(machine, b"hello")
        assert listener.recv(100) == b"hello"

        await host.apply(HostChange(settings=(InterfaceSettings("eth0", kernel_ingress=False),)))
        send_from_the_wire(machine, b"first", b"second")
        port.settimeout(5)
        while b"second" not in port.recv(2000):
            pass
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # the first packet has arrived by now, or never will
            listener.recv(100)


async def test_interfaces_that_are_not_pod_links_are_ignored(host: LinuxHost, machine: LinuxMachine):
    ip("link", "add", "cni0", "type", "bridge")
    with pytest.raises(HostError, match=r"cni0 is not a Pod link but an interface of kind bridge"):
        await host.pods.detach("cni0")
    assert ip_json("link", "show", "cni0")


async def test_an_existing_interface_of_the_pod_is_reported_and_kept(host: LinuxHost, machine: LinuxMachine):
    link = pod_link(machine, machine.new_sandbox())
    await host.pods.attach(link)
    with pytest.raises(HostError, match=f"could not create eth0 in the Pod's namespace {link.namespace}: File exists"):
        await host.pods.attach(pod_link(machine, link.namespace, "pod-2"))
    assert await host.pods.check(link) == ()
    assert [attached.host_interface for attached in await host.pods.links()] == ["pod-1"]


async def test_changes_inside_the_pod_are_reported(host: LinuxHost, machine: LinuxMachine):
    link = pod_link(machine, machine.new_sandbox())
    await host.pods.attach(link)
    with entered(link.namespace):
        ip("route", "delete", "default")
        ip("link", "set", "eth0", "mtu", "1300")
    where = f"eth0 in {link.namespace}"
    assert await host.pods.check(link) == (
        f"{where}: MTU 1300 instead of 1450",
        f"{where}: gateways 2001:db8:1::1 instead of 10.0.1.1, 2001:db8:1::1",
    )


def test_a_socket_stays_in_its_namespace_and_the_thread_returns(machine: LinuxMachine):
    home = Path("/proc/thread-self/ns/net").readlink()
    with entered(machine.new_sandbox()):
        assert Path("/proc/thread-self/ns/net").readlink() != home
        netlink = Netlink()
    assert Path("/proc/thread-self/ns/net").readlink() == home
    netlink.close()


def packet_socket(interface: str, protocol: int) -> socket.socket:
    """The kind of socket with which the userspace datapath reads a port."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    port.bind((interface, protocol))
    port.setblocking(False)
    return port


def received(port: socket.socket, ether_type: int) -> list[tuple[str, str]]:
    """The sender and target addresses of received and sent ARP packets."""
    found = []
    while True:
        try:
            frame = port.recv(2000)
        except BlockingIOError:
            return found
        if frame[12:14] == ether_type.to_bytes(2, "big"):
            found.append((str(ip_address(frame[28:32])), str(ip_address(frame[38:42]))))


def send_from_the_wire(machine: LinuxMachine, *packets: bytes) -> None:
    """Sent to the NIC's MAC, as by a neighbour that has resolved it."""
    with entered(f"/run/netns/{machine.wire}"):
        ip("neighbour", "replace", "192.0.2.5", "lladdr", "02:00:00:00:00:05", "dev", "wire")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for packet in packets:
                sender.sendto(packet, ("192.0.2.5", 7000))
