"""The path of a packet from a dump of megaflows, recorded for a client outside and a NodePort."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from windlass.lab.tracing import megaflows
from windlass.lab.tracing.megaflows import Ends, Megaflow, PacketHeader, PathNotFoundError, Phase
from windlass.lab.tracing.traces import ct_actions

DUMP = (Path(__file__).parent / "traces" / "megaflows.txt").read_text()
CLIENT, NODE, PEER = map(ip_address, ("10.176.26.36", "10.176.25.244", "10.176.25.103"))
GATEWAY, ENDPOINT = map(ip_address, ("172.16.2.1", "172.16.0.32"))


def header_of(flow: Megaflow, ends: Ends) -> PacketHeader:
    """The MACs are those of the recorded run."""
    source, destination = (part.split("=")[1].partition("/")[0] for part in flow.fields["eth"].split(","))
    return PacketHeader(ends, source, destination)


@pytest.fixture(scope="module")
def flows():
    return megaflows.parse(DUMP)


@pytest.fixture(scope="module")
def asking(flows):
    entry = next(flow for flow in flows if flow.recirc_id == 0 and "dst=30232" in flow.key)
    return header_of(entry, Ends(CLIENT, 40000, NODE, 30232))


def kinds(way: tuple[Megaflow, ...]) -> list[str]:
    return [flow.actions[-2 if flow.actions[-1].startswith("recirc") else 0].partition("(")[0] for flow in way]


def test_a_first_packet_recirculates_for_lookup_endpoint_and_source(flows, asking):
    way = megaflows.path(flows, "eth0", asking, Phase.FIRST)
    assert kinds(way) == ["ct", "hash", "ct", "ct", "tnl_push"]
    assert sum(len(list(ct_actions(flow.actions))) for flow in way) == 3


def test_packets_of_an_established_connection_recirculate_less(flows, asking):
    assert kinds(megaflows.path(flows, "eth0", asking, Phase.ESTABLISHED)) == ["ct", "ct", "tnl_push"]


def test_an_answer_out_of_the_tunnel_is_unpacked_first(flows):
    packed = next(flow for flow in flows if flow.unpacks_to)
    inside = next(flow for flow in flows if flow.in_port == packed.unpacks_to and flow.recirc_id == 0)
    outer, inner = Ends(PEER, 5, NODE, 6081), Ends(ENDPOINT, 8080, GATEWAY, 24576)
    way = megaflows.path_from_tunnel(flows, "eth0", header_of(packed, outer), header_of(inside, inner), Phase.REPLY)
    assert [flow.in_port for flow in way] == ["eth0", *["genev_sys_6081"] * 3]


def test_a_packet_without_a_megaflow_has_no_path(flows, asking):
    other = PacketHeader(Ends(CLIENT, 40000, NODE, 30233), asking.eth_source, asking.eth_destination)
    with pytest.raises(PathNotFoundError, match="0 megaflows match the packet from eth0"):
        megaflows.path(flows, "eth0", other, Phase.FIRST)


def test_a_megaflow_matches_by_its_masks():
    line = (
        "recirc_id(0),in_port(a),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02/00:00:00:00:00:00),eth_type(0x0800),"
        "ipv4(src=10.0.0.0/255.0.0.0,dst=10.0.0.2,proto=6,frag=no),tcp(src=1/0,dst=0x50/0xfff0), "
        "packets:3, bytes:1, used:1s, actions:drop"
    )
    (flow,) = megaflows.parse(line)
    fitting = PacketHeader(
        Ends(ip_address("10.9.9.9"), 7, ip_address("10.0.0.2"), 0x5F), "02:00:00:00:00:01", "ff:" * 5 + "ff"
    )
    assert flow.fits(fitting)
    assert not flow.fits(fitting, "udp")
    assert not flow.fits(PacketHeader(fitting.ends, "02:00:00:00:00:03", fitting.eth_destination))
    for ends in (
        Ends(ip_address("11.9.9.9"), 7, ip_address("10.0.0.2"), 0x5F),
        Ends(ip_address("10.9.9.9"), 7, ip_address("10.0.0.3"), 0x5F),
        Ends(ip_address("10.9.9.9"), 7, ip_address("10.0.0.2"), 0x60),
        Ends(ip_address("fd00::9"), 7, ip_address("fd00::2"), 0x5F),
    ):
        assert not flow.fits(PacketHeader(ends, fitting.eth_source, fitting.eth_destination))
    assert (flow.actions, flow.protocol) == ((), 6)


def test_a_traceable_key_has_only_fields_that_trace_can_parse():
    (flow,) = megaflows.parse(
        "ct_state(0x21/0x31),ct_tuple6(src=fd00::1/::,dst=fd00::2/::,proto=6/0,src_port=5/0,dst_port=80/0),recirc_id(0x8),"
        "in_port(a), packets:0, bytes:0, used:never, actions:drop"
    )
    assert flow.traceable == "ct_state(0x21/0x31),recirc_id(0x8),in_port(a)"


def test_arp_megaflows_are_not_part_of_connections():
    (flow,) = megaflows.parse(
        "recirc_id(0),in_port(a),eth_type(0x0806),arp(op=1/0xff), packets:0, bytes:0, used:never, actions:b"
    )
    assert flow.protocol is None


def test_text_that_is_not_a_dump_is_an_error():
    with pytest.raises(PathNotFoundError, match="not a megaflow"):
        megaflows.parse("actions:output")
