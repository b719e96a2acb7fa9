"""What `ofproto/trace` prints becomes passes, flows and actions: recorded from a lab's switch, and live from one here.

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


def recorded(name: str) -> traces.Trace:
    return traces.parse((RECORDS / f"{name}.txt").read_text())


def tables(one: traces.Pass) -> list[str]:
    return [LAYOUT.tables[number].name for number in one.tables]


def test_the_first_pass_ends_where_connection_tracking_sends_it_around():
    first, guessed = recorded("nodeport-first-pass").passes
    assert tables(first) == ["Classifier", "Uplink", "NodePortFilter", "UnSNAT", "Conntrack"]
    assert first.ct == (CtAction(65520, nat="nat"),)
    assert list(traces.recirculations(first.actions)) == [guessed.recirc_id] != [0]
    assert (first.resumed, guessed.resumed) == (None, 31)
    assert first.packet["nw_dst"] == "10.176.25.244"
    assert "ct_state" not in first.packet
    assert guessed.packet["ct_state"] == "new|trk"


def test_a_flow_is_met_with_its_match_its_cookie_and_its_actions():
    first = recorded("nodeport-first-pass").passes[0]
    assert first.met[0].match == "in_port=3"
    assert first.met[0].actions == ("set_field:0x4/0xffff->reg0", "goto_table:5")
    miss = first.met[3]
    assert (miss.table, miss.match, miss.priority) == (25, "", 0)
    assert all(met.cookie for met in first.met)


def test_a_group_shows_its_bucket_and_where_the_packet_resumes():
    chosen = recorded("group").passes[0]
    assert chosen.met == ()
    assert chosen.buckets == (ChosenBucket(4091819776, 0),)
    assert chosen.resumed == 41, "the table that led to the group"
    (ct,) = chosen.ct
    assert (ct.zone, ct.commit, ct.nat) == (65520, True, "nat(dst=172.16.0.32:8080)")


def test_flows_of_the_outer_tunnel_packet_are_marked():
    (one,) = recorded("into-the-tunnel").passes
    assert [(LAYOUT.tables[met.table].name, met.outer) for met in one.met] == [
        ("L2ForwardingOut", False),
        ("Classifier", True),
    ]
    assert one.outputs == ("1", "3"), "the tunnel, and the uplink for what it became"
    assert not any(traces.recirculations(one.actions))


def test_packets_to_the_host_leave_by_the_local_port():
    (one,) = recorded("from-the-tunnel").passes
    assert one.outputs == ("LOCAL",)
    assert one.actions == ("tnl_pop(1)",)


def test_a_drop_has_no_actions():
    assert recorded("dropped").passes[-1].actions == ()
    assert recorded("dropped").passes[-1].outputs == ()
    assert tables(recorded("dropped").passes[-1]) == ["ConntrackState", "ServiceLB"]


def test_no_match_is_met_without_a_flow():
    (one,) = recorded("no-match").passes
    assert one.met[-1] == MatchedFlow(10, actions=("drop",))


def test_outputs_to_the_controller_and_the_in_port():
    assert recorded("refused").passes[-1].outputs == ("CONTROLLER",)
    assert recorded("hairpin").passes[-1].outputs == ("IN_PORT",)


def test_a_failed_translation_is_an_error():
    (one,) = recorded("no-recirculation").passes
    assert "No recirculation context" in one.error


@pytest.mark.parametrize("text", ["", "Bad openflow flow syntax: in_port=x"])
def test_text_that_is_not_a_trace_is_an_error(text):
    with pytest.raises(UnreadableTraceError, match="not a trace"):
        traces.parse(text)


@requires_ovs
async def test_a_live_switch_is_read_likewise(switch):
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
    first, second = traces.parse(said).passes
    assert first.met == (MatchedFlow(0, "tcp", 200, 0x11, ("ct(table=5,zone=9,nat)", "nat")),)
    assert first.ct == (CtAction(9, nat="nat"),)
    assert list(traces.recirculations(first.actions)) == [second.recirc_id]
    assert [(met.table, met.cookie) for met in second.met] == [(5, 0x12), (6, 0x13)]
    assert second.ct == (CtAction(9, commit=True),)
    assert any(action.startswith("hash(") for action in second.actions), "trace stops at the hash of a group"
