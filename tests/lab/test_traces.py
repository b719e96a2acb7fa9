"""The output of `ofproto/trace` is parsed to passes, flows and actions: recorded ones, and one of a live switch.

The records are of design note 002: a client outside asks a NodePort whose endpoint is on another Node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from switches import requires_ovs
from windlass.lab.tracing import traces
from windlass.lab.tracing.traces import ChosenBucket, CtAction, MatchedFlow, UnreadableTraceError
from windlass.pipeline.layout import LAYOUT

RECORDS = Path(__file__).parent / "traces"


def recorded(name: str) -> tuple[traces.Pass, ...]:
    return traces.parse((RECORDS / f"{name}.txt").read_text())


def tables(one: traces.Pass) -> list[str]:
    return [LAYOUT.tables[met.table].name for met in one.met]


def test_the_first_pass_ends_with_a_recirculation_by_connection_tracking():
    first, guessed = recorded("nodeport-first-pass")
    assert tables(first) == ["Classifier", "Uplink", "NodePortFilter", "UnSNAT", "Conntrack"]
    assert first.ct == (CtAction(65520, nat="nat"),)
    assert [f"{number:#x}" for number in traces.recirculations(first.actions)] == [guessed.packet["recirc_id"]]
    assert first.packet["nw_dst"] == "10.176.25.244"
    assert "ct_state" not in first.packet
    assert guessed.packet["ct_state"] == "new|trk"


def test_a_matched_flow_has_its_cookie():
    first = recorded("nodeport-first-pass")[0]
    assert all(met.cookie for met in first.met)


def test_a_group_shows_its_bucket_and_the_translation():
    chosen = recorded("group")[0]
    assert chosen.met == ()
    assert chosen.buckets == (ChosenBucket(4091819776, 0),)
    (ct,) = chosen.ct
    assert (ct.zone, ct.commit, ct.nat) == (65520, True, "nat(dst=172.16.0.32:8080)")


def test_flows_of_the_outer_tunnel_packet_are_marked():
    (one,) = recorded("into-the-tunnel")
    assert [(LAYOUT.tables[met.table].name, met.outer) for met in one.met] == [
        ("L2ForwardingOut", False),
        ("Classifier", True),
    ]
    assert not any(traces.recirculations(one.actions))


def test_packets_from_the_tunnel_are_decapsulated():
    (one,) = recorded("from-the-tunnel")
    assert one.actions == ("tnl_pop(1)",)


def test_a_drop_has_no_actions():
    assert recorded("dropped")[-1].actions == ()
    assert tables(recorded("dropped")[-1]) == ["ConntrackState", "ServiceLB"]


def test_a_table_miss_has_no_flow():
    (one,) = recorded("no-match")
    assert one.met[-1] == MatchedFlow(10)


@pytest.mark.parametrize("text", ["", "Bad openflow flow syntax: in_port=x"])
def test_text_that_is_not_a_trace_is_an_error(text):
    with pytest.raises(UnreadableTraceError, match="not a trace"):
        traces.parse(text)


@requires_ovs
async def test_the_trace_of_a_live_switch_is_read(switch):
    await switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure")
    bridge = str(switch.management("br0"))
    await switch.ofctl("add-group", bridge, "group_id=7,type=select,bucket=bucket_id:4,actions=output:LOCAL")
    for flow in (
        "cookie=0x11,table=0,priority=200,tcp,actions=ct(table=5,zone=9,nat)",
        "cookie=0x12,table=5,priority=100,tcp,ct_state=+new+trk,actions=ct(commit,zone=9),goto_table:6",
        "cookie=0x13,table=6,actions=group:7",
    ):
        await switch.ofctl("add-flow", bridge, flow)
    packet = "in_port=LOCAL,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tcp_dst=80"
    said = await switch.appctl("ovs-vswitchd", "ofproto/trace", "br0", packet, "--ct-next", "trk,new")
    first, second = traces.parse(said)
    assert first.met == (MatchedFlow(0, 0x11),)
    assert first.ct == (CtAction(9, nat="nat"),)
    assert [f"{number:#x}" for number in traces.recirculations(first.actions)] == [second.packet["recirc_id"]]
    assert [(met.table, met.cookie) for met in second.met] == [(5, 0x12), (6, 0x13)]
    assert second.ct == (CtAction(9, commit=True),)
    assert any(action.startswith("hash(") for action in second.actions), "trace stops at the hash of a group"
