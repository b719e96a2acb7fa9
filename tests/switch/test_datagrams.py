"""An empty datagram or segment is one that another implementation would send, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from os_ken.lib.packet import ipv4, ipv6, packet, tcp, udp

from windlass.switch.datagrams import empty_datagram, empty_segment


@pytest.mark.parametrize(("source", "destination"), [("172.16.1.2", "10.96.0.10"), ("fd00::2", "fd00:10:96::10")])
@pytest.mark.parametrize(("empty", "transport"), [(empty_datagram, udp.udp), (empty_segment, tcp.tcp)])
def test_an_empty_packet_has_its_addresses_ports_and_checksums(
    empty: Callable[[str, int, str, int], bytes], transport: type, source: str, destination: str
) -> None:
    frame = empty(source, 40001, destination, 53)
    decoded = packet.Packet(frame)
    addresses = decoded.get_protocol(ipv4.ipv4) or decoded.get_protocol(ipv6.ipv6)
    ports = decoded.get_protocol(transport)
    assert (addresses.src, addresses.dst, ports.src_port, ports.dst_port) == (source, destination, 40001, 53)
    for protocol in decoded:
        if hasattr(protocol, "csum"):
            protocol.csum = 0  # have it computed again
    decoded.serialize()
    assert frame == decoded.data[: len(frame)]  # it adds padding


def test_no_datagram_is_without_a_checksum() -> None:
    """Of the sums with all source ports, one is zero."""
    assert all(empty_datagram("fd00::2", port, "fd00::3", 53)[-2:] != b"\0\0" for port in range(0x10000))
