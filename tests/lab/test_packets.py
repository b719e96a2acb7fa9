"""The packets that the lab builds itself, against known values and against each other."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.lib.packet import icmpv6, ipv4, ipv6, packet, tcp, udp

from windlass.lab.probing import packets
from windlass.lab.probing.packets import Chunk, SctpPacket

V4 = ip_address("10.0.0.1"), ip_address("10.0.0.2")
V6 = ip_address("fd00::1"), ip_address("fd00::2")


def test_crc32c_of_the_rfc():
    assert packets.crc32c(b"123456789") == 0xE3069283
    assert packets.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@given(st.binary(max_size=1200), st.integers(0, 0xFFFFFFFF), st.sampled_from(Chunk))
def test_sctp_packets_are_read_as_they_were_written(value, tag, chunk):
    packet = SctpPacket(1000, 2000, tag, chunk, value)
    assert packets.decode_sctp(packet.encode()) == packet


def test_a_damaged_sctp_packet_is_none():
    good = SctpPacket(1, 2, 3, Chunk.INIT, packets.init_value(7)).encode()
    assert packets.decode_sctp(good[:-1] + b"x") is None
    assert packets.decode_sctp(b"short") is None


@given(st.binary(min_size=1, max_size=300))
def test_a_cookie_and_a_heartbeat_are_decoded_unchanged(payload):
    assert packets.init_cookie(packets.init_value(7, payload)) == payload
    assert packets.heartbeat_payload(packets.heartbeat_value(payload)) == payload


@pytest.mark.parametrize(("source", "destination"), [V4, V6])
def test_another_parser_reads_a_forged_syn(source, destination):
    segment = packets.tcp_syn(source, destination, (4321, 80), 0xABCD1234)
    parsed, header = _parsed(source, destination, packets.TCP, segment, tcp.tcp)
    assert (parsed.src_port, parsed.dst_port, parsed.seq, parsed.bits) == (4321, 80, 0xABCD1234, tcp.TCP_SYN)
    assert (header.src, header.dst) == (str(source), str(destination))
    assert packets.tcp_sequence(segment) == 0xABCD1234
    assert _checksum_holds(source, destination, packets.TCP, segment)


@pytest.mark.parametrize(("source", "destination"), [V4, V6])
def test_another_parser_reads_a_forged_datagram(source, destination):
    datagram = packets.udp_datagram(source, destination, (4321, 53), b"hello")
    parsed, _ = _parsed(source, destination, packets.UDP, datagram, udp.udp)
    assert (parsed.src_port, parsed.dst_port, parsed.total_length) == (4321, 53, 13)
    assert _checksum_holds(source, destination, packets.UDP, datagram)


def test_echo_requests():
    four = packets.icmp_echo(77, b"token", V4)
    assert four[0] == 8
    assert packets.internet_checksum(four) == 0
    assert packets.echo_payload(four) == (77, b"token")
    six = packets.icmp_echo(77, b"token", V6)
    assert six[0] == icmpv6.ICMPV6_ECHO_REQUEST
    assert _checksum_holds(*V6, packets.ICMPV6, six)


def _parsed(source, destination, number, payload, kind):
    header = ipv4.ipv4 if source.version == 4 else ipv6.ipv6
    found = packet.Packet(packets.with_ip_header(source, destination, number, payload), parse_cls=header)
    return found.get_protocol(kind), found.get_protocol(header)


def _checksum_holds(source, destination, number, payload):
    pseudo = source.packed + destination.packed + struct.pack("!IHH", len(payload), 0, number)
    return packets.internet_checksum(pseudo + payload) == 0
