"""Services on a Linux host, with real packets: paths and source addresses."""

from __future__ import annotations

import asyncio
import socket
import struct
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from host_machines import requires_namespaces
from service_machines import (
    EXTERNAL,
    EXTERNAL6,
    NAMES,
    PORT,
    TCP,
    TCP6,
    UDP,
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
    told,
)

from windlass.host.linux import nftables
from windlass.host.plans import ExternalPort, HostPlan, NodePort, ServiceAccess, diff
from windlass.model.services import Protocol

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

pytestmark = [requires_namespaces, requires_nftables]
machine, host = service_node, service_host  # the fixtures


async def test_the_host_reaches_a_node_port_at_each_of_its_addresses(host: LinuxHost, machine: ServiceMachine):
    """Design note 001, "Host --> NodeIP" and "Host --> Node LocalIP": the switch sees the gateway."""
    await machine.answers("switch", PORT)
    assert await apply(host, desired(TCP, TCP6, UDP, UDP6)) == ()
    for address in ("192.0.2.5", "198.51.100.5", "127.0.0.1", "10.0.1.1", "2001:db8::5", "2001:db8:51::5"):
        seen = "2001:db8:1::1" if ":" in address else "10.0.1.1"
        assert await machine.ask("node", address, PORT) == f"switch saw {seen}", address
        with machine.socket("node", address, socket.SOCK_DGRAM) as udp:
            udp.connect((address, PORT))
            assert await told(udp, b"?") == f"switch saw {seen}", address
    assert await machine.ask("node", "192.0.2.5", PORT, source="198.51.100.5") == "switch saw 10.0.1.1"


async def test_clients_of_a_second_nic_keep_their_address(host: LinuxHost, machine: ServiceMachine):
    """Design note 001, "Other NodeIPs": the switch decides about SNAT."""
    await machine.answers("switch", PORT)
    assert await apply(host, desired(TCP, TCP6)) == ()
    for address, seen in (
        ("198.51.100.5", "198.51.100.9"),
        ("192.0.2.5", "198.51.100.9"),  # the Node IP, but not by the wire of the switch
        ("2001:db8:51::5", "2001:db8:51::9"),
    ):
        assert await machine.ask("client", address, PORT) == f"switch saw {seen}"


async def test_packets_to_the_node_ip_by_the_bridge_interface_stay_on_the_host(
    host: LinuxHost, machine: ServiceMachine
):
    await machine.answers("switch", PORT)
    await machine.answers("node", PORT)
    assert await apply(host, desired(TCP, TCP6)) == ()
    assert await machine.ask("wire", "192.0.2.5", PORT) == "node saw 192.0.2.1"
    assert await machine.ask("wire", "2001:db8::5", PORT) == "node saw 2001:db8::1"
    # But not for its other addresses, which the switch does not know.
    assert await machine.ask("wire", "198.51.100.5", PORT) == "switch saw 192.0.2.1"


async def test_node_ports_answer_at_the_configured_addresses_only(host: LinuxHost, machine: ServiceMachine):
    await machine.answers("switch", PORT)
    wanted = desired(TCP, TCP6, networks=("198.51.100.0/25", "198.51.100.0/24", "2001:db8:51::5/128"))
    assert await apply(host, wanted) == ()
    assert await machine.ask("client", "198.51.100.5", PORT) == "switch saw 198.51.100.9"
    assert await machine.ask("node", "2001:db8:51::5", PORT) == "switch saw 2001:db8:1::1"
    for address in ("192.0.2.5", "127.0.0.1", "2001:db8::5"):
        assert await machine.ask("node", address, PORT) == "refused"
    assert sysctl("windlass-gw0/route_localnet") == 0
    assert sysctl("br-int/forwarding") == sysctl("eth1/forwarding") == 1

    assert await apply(host, desired(TCP, TCP6)) == ()
    assert await machine.ask("node", "127.0.0.1", PORT) == "switch saw 10.0.1.1"


async def test_a_port_of_another_family_or_protocol_stays_on_the_host(host: LinuxHost, machine: ServiceMachine):
    await machine.answers("switch", PORT)
    await machine.answers("node", PORT)
    assert await apply(host, desired(TCP)) == ()
    assert await machine.ask("node", "192.0.2.5", PORT) == "switch saw 10.0.1.1"
    assert await machine.ask("node", "2001:db8::5", PORT) == "node saw 2001:db8::5"
    with machine.socket("node", "192.0.2.5", socket.SOCK_DGRAM) as udp:
        udp.connect(("192.0.2.5", PORT))
        assert await told(udp, b"?") == "node saw 192.0.2.5"


async def test_the_ipv6_loopback_address_stays_on_the_host(host: LinuxHost, machine: ServiceMachine):
    """Linux cannot translate ::1."""
    await machine.answers("switch", PORT)
    await machine.answers("node", PORT)
    assert await apply(host, desired(TCP6)) == ()
    assert await machine.ask("node", "::1", PORT) == "node saw ::1"


async def test_the_host_reaches_cluster_ips_as_the_gateway(host: LinuxHost, machine: ServiceMachine):
    """Design note 000, for any source address of the host's process."""
    await machine.answers("switch", 443)
    assert await apply(host, desired()) == ()
    for source in ("", "192.0.2.5", "198.51.100.5"):
        assert await machine.ask("node", "10.96.0.10", 443, source) == "switch saw 10.0.1.1"
    for source in ("", "2001:db8::5"):
        assert await machine.ask("node", "fd00:10:96::10", 443, source) == "switch saw 2001:db8:1::1"


async def test_only_service_ports_of_an_external_address_go_to_the_switch(host: LinuxHost, machine: ServiceMachine):
    for port in (80, 22):
        await machine.answers("switch", port)
        await machine.answers("wire", port)
    assert await apply(host, desired(EXTERNAL, EXTERNAL6)) == ()
    assert await machine.ask("node", "203.0.113.80", 80) == "switch saw 10.0.1.1"
    assert await machine.ask("node", "203.0.113.80", 22) == "wire saw 192.0.2.5"
    assert await machine.ask("node", "2001:db8:cb::80", 80) == "switch saw 2001:db8:1::1"
    assert await machine.ask("node", "2001:db8:cb::80", 22) == "wire saw 2001:db8::5"
    # Clients of the second NIC keep their address.
    assert await machine.ask("client", "203.0.113.80", 80) == "switch saw 198.51.100.9"
    assert await machine.ask("client", "2001:db8:cb::80", 80) == "switch saw 2001:db8:51::9"

    assert await apply(host, desired()) == ()
    assert await machine.ask("node", "203.0.113.80", 80) == "wire saw 192.0.2.5"


async def test_external_ports_are_served_on_every_nic(host: LinuxHost, machine: ServiceMachine):
    """Also on a NIC where NodePorts do not answer."""
    await machine.answers("switch", 80)
    own = ExternalPort(ip_address("198.51.100.5"), Protocol.TCP, 80)
    assert await apply(host, desired(EXTERNAL, own, networks=("192.0.2.0/24",))) == ()
    for address in ("203.0.113.80", "198.51.100.5"):
        assert await machine.ask("client", address, 80) == "switch saw 198.51.100.9"


async def test_an_external_address_may_be_an_address_of_the_host(host: LinuxHost, machine: ServiceMachine):
    """Packets are translated to its stand-in, because no route can send an address of the host to the switch."""
    for port in (80, 22):
        await machine.answers("switch", port)
    await machine.answers("node", 22)
    own = [ip_address(a) for a in ("192.0.2.5", "198.51.100.5", "2001:db8::5", "2001:db8:51::5")]
    external = [ExternalPort(a, p, 80) for a in own for p in (Protocol.TCP, Protocol.UDP)]
    assert await apply(host, desired(*external)) == ()
    for address in map(str, own):
        seen = "2001:db8:1::1" if ":" in address else "10.0.1.1"
        assert await machine.ask("node", address, 80) == f"switch saw {seen}", address
        with machine.socket("node", address, socket.SOCK_DGRAM) as udp:
            udp.connect((address, 80))
            assert await told(udp, b"?") == f"switch saw {seen}", address
        seen = "2001:db8:51::9" if ":" in address else "198.51.100.9"
        assert await machine.ask("client", address, 80) == f"switch saw {seen}", address
    for address in ("192.0.2.5", "2001:db8::5"):
        assert await machine.ask("node", address, 22) == f"node saw {address}"
    # The switch has handled packets of NodePorts from the wire: those that reach the host are for the host.
    assert await machine.ask("wire", "192.0.2.5", 80) == "refused"


async def test_replies_to_clients_from_the_switch_go_back_to_the_switch(host: LinuxHost, machine: ServiceMachine):
    """Endpoints on this host with policy Local; the client is behind the second NIC."""
    await machine.answers("node", 9090)
    assert await apply(host, desired()) == ()
    for address, client in (("192.0.2.5", "198.51.100.77"), ("2001:db8::5", "2001:db8:51::77")):
        assert await machine.ask("switch", address, 9090, client) == f"node saw {client}"
        with machine.socket("switch", address, socket.SOCK_DGRAM) as udp:
            udp.bind((client, 0))
            udp.connect((address, 9090))
            assert await told(udp, b"?") == f"node saw {client}"


async def test_packets_from_the_switch_cannot_reach_the_hosts_loopback(host: LinuxHost, machine: ServiceMachine):
    """`route_localnet` alone would let Pods reach services that listen on the loopback address of the host."""
    assert await apply(host, desired(UDP)) == ()
    loop = asyncio.get_running_loop()
    with (
        machine.socket("node", "127.0.0.1", socket.SOCK_DGRAM) as private,
        machine.socket("node", "10.0.1.1", socket.SOCK_DGRAM) as public,
    ):
        private.bind(("127.0.0.1", 9000))
        public.bind(("10.0.1.1", 9000))
        send_udp(machine, "169.254.169.110", "127.0.0.1", 9000)
        send_udp(machine, "127.0.0.1", "10.0.1.1", 9000)
        send_udp(machine, "169.254.169.110", "10.0.1.1", 9000)
        _, sender = await asyncio.wait_for(loop.sock_recvfrom(public, 100), 30)
        assert sender[0] == "169.254.169.110"
        with pytest.raises(BlockingIOError):
            private.recv(100)


async def test_existing_udp_flows_follow_an_added_or_removed_node_port(host: LinuxHost, machine: ServiceMachine):
    await machine.answers("switch", PORT)
    await machine.answers("switch", 80)
    udp_external = ExternalPort(EXTERNAL.address, Protocol.UDP, 80)
    assert await apply(host, desired()) == ()
    with (
        machine.socket("node", "127.0.0.1", socket.SOCK_DGRAM) as to_loopback,
        machine.socket("node", "2001:db8::5", socket.SOCK_DGRAM) as to_node,
        machine.socket("node", "203.0.113.80", socket.SOCK_DGRAM) as to_external,
    ):
        to_loopback.connect(("127.0.0.1", PORT))
        to_node.connect(("2001:db8::5", PORT))
        to_external.connect(("203.0.113.80", 80))
        for _ in range(2):
            assert [await told(udp, b"?") for udp in (to_loopback, to_node, to_external)] == ["refused"] * 3
            assert await apply(host, desired(UDP, UDP6, udp_external)) == ()
            assert [await told(udp, b"?") for udp in (to_loopback, to_node, to_external)] == [
                "switch saw 10.0.1.1",
                "switch saw 2001:db8:1::1",
                "switch saw 10.0.1.1",
            ]
            assert await apply(host, desired()) == ()


async def test_connections_survive_a_replacement_of_the_table(host: LinuxHost, machine: ServiceMachine):
    await machine.answers("switch", PORT)
    assert await apply(host, desired(TCP)) == ()
    with (
        machine.socket("client", "198.51.100.5", socket.SOCK_STREAM) as of_client,
        machine.socket("node", "127.0.0.1", socket.SOCK_STREAM) as of_host,
    ):
        await machine.connect(of_client, "198.51.100.5", PORT)
        await machine.connect(of_host, "127.0.0.1", PORT)
        assert await told(of_client) == "switch saw 198.51.100.9"
        assert await told(of_host) == "switch saw 10.0.1.1"
        assert await apply(host, desired(TCP, networks=("192.0.2.0/24", "127.0.0.0/8"))) == ()
        assert await told(of_client, b"still there?") == await told(of_host, b"still there?") == "still there?"


@requires_nft
async def test_the_mark_of_external_ports_does_not_leave_the_host(host: LinuxHost, machine: ServiceMachine):
    """Otherwise the kernel datapath would return the mark with the packet, and the host would route it back again."""
    await machine.answers("switch", 80)
    nft(
        "add table inet judge; add chain inet judge last { type filter hook postrouting priority 300; };"
        'add rule inet judge last oifname "windlass-gw0" meta mark & 0x40000000 != 0 counter;'
        'add rule inet judge last oifname "windlass-gw0" meta mark 7 tcp dport 80 counter'
    )
    nft(
        "add chain inet judge first { type filter hook output priority -300; };"
        "add rule inet judge first meta mark set 7"
    )
    assert await apply(host, desired(EXTERNAL)) == ()
    assert await machine.ask("node", "203.0.113.80", 80) == "switch saw 10.0.1.1"
    marked, unmarked = (
        line for line in nft("list", "chain", "inet", "judge", "last").splitlines() if "counter" in line
    )
    assert "packets 0 " in marked
    assert "packets 0 " not in unmarked  # and what others marked stays marked


async def test_a_missing_library_is_reported_and_everything_else_works(
    host: LinuxHost, machine: ServiceMachine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nftables, "LIBRARY", "libnftables.so.none")
    await machine.answers("switch", 443)
    wanted = desired(TCP, EXTERNAL)
    (problem,) = await apply(host, wanted)
    assert problem == (
        "could not create access of the host to Services through windlass-gw0: libnftables.so.none is not installed "
        "(on Debian: apt-get install libnftables1); the host reaches ClusterIPs, but neither NodePorts nor external "
        "addresses; clients behind its other NICs do not reach those either, and external clients do not reach "
        "endpoints on this host with externalTrafficPolicy Local"
    )
    assert await machine.ask("node", "10.96.0.10", 443) == "switch saw 10.0.1.1"
    missing = diff(await host.installed(NAMES), wanted).added
    assert missing == {item for item in wanted.items if isinstance(item, ServiceAccess | NodePort | ExternalPort)}

    (problem,) = await host.apply(diff(HostPlan(), HostPlan(items=frozenset((TCP, EXTERNAL)))))
    assert problem.startswith("could not add ")
    assert " and 1 more: libnftables.so.none is not installed" in problem


def send_udp(machine: ServiceMachine, source: str, destination: str, port: int) -> None:
    """Sends a packet from behind the gateway that no socket of the kernel would send."""
    data = struct.pack("!HHHH", 5000, port, 12, 0) + b"psst"
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(data), 1, 0, 64, socket.IPPROTO_UDP, 0) + addresses
    checksum = 0xFFFF - sum(struct.unpack("!10H", header)) % 0xFFFF
    machine.send_from_switch(header[:10] + struct.pack("!H", checksum) + header[12:] + data)
