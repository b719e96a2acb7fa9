"""Every message that Windlass can send, checked by two independent decoders: ovs-ofctl and os-ken.

ovs-ofctl prints the message as it understands it. os-ken builds the same message from its own objects, or takes ours
apart and puts it together again. Where os-ken cannot, the test says so.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

import openflow_strategies as generated
import pytest
from hypothesis import given, settings
from msgspec import structs
from os_ken.ofproto import ofproto_v1_5 as ken_constants
from os_ken.ofproto import ofproto_v1_5_parser as ken
from os_ken.ofproto.ofproto_parser import MsgBase

from switches import requires_ovs
from windlass.model.families import Family
from windlass.openflow.actions import (
    Action,
    Actions,
    Ct,
    Learn,
    LearnLoad,
    LearnMatch,
    Move,
    Nat,
    Output,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.conditions import destination, destination_port, ip
from windlass.openflow.fields import ETH_DST, ETH_SRC, LOCAL_PORT, ND_OPTIONS_TYPE, ND_RESERVED, Bits, reg
from windlass.openflow.flows import Bucket, Flow, Group, Meter
from windlass.openflow.matches import match
from windlass.openflow.wire import bundles, flows, groups, messages, meters, monitors, packets

XID = 0x5EED
SERVICE = IPv4Address("10.96.0.10")
ENDPOINT = IPv4Address("172.16.2.5")

SERVICE_FLOW = Flow(
    41,
    200,
    match(reg(0)(2, 0xFFFF), destination(SERVICE), destination_port(Family.IPV4, 6, 80)),
    (Set(reg(4)(7)), ToGroup(9)),
    "a Service",
)
FLOW = flows.encode(SERVICE_FLOW)
BUCKET = Bucket(3, (Ct(1, 105, commit=True, nat=Nat(to=ENDPOINT, ports=(8080, 8080))), Resubmit(6)), 50)
GROUP = groups.encode(Group(9, (BUCKET,), "its endpoints"))
METER = meters.encode(Meter(7, 100, 200, "a limit"))
PACKET = bytes(60)


class Datapath:
    ofproto = ken_constants
    ofproto_parser = ken


def bytes_of(message: MsgBase, xid: int = XID) -> bytes:
    """What os-ken would send."""
    message.xid = xid
    message.serialize()
    return bytes(message.buf)


def taken_apart(data: bytes) -> MsgBase:
    """What os-ken reads in it."""
    header = messages.parse_header(data)
    assert header.length == len(data)
    return ken.msg_parser(Datapath, header.version, header.type, header.length, header.xid, data)


def printed(data: bytes) -> str:
    """What ovs-ofctl reads in it."""
    command = ("ovs-ofctl", "-O", "OpenFlow15", "ofp-print", data.hex(), "2")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "decode error" not in text
    assert "bad" not in text.lower()
    return text


@dataclass(frozen=True)
class Case:
    ours: bytes
    ovs_ofctl: tuple[str, ...]  # words of what it prints
    os_ken: Callable[[], MsgBase]


def ken_match() -> ken.OFPMatch:
    """In the field order of Open vSwitch; os-ken alone sorts them by their numbers."""
    fields = [("eth_type", 0x0800), ("ipv4_dst", str(SERVICE)), ("ip_proto", 6), ("tcp_dst", 80)]
    return ken.OFPMatch(_ordered_fields=[*fields, ("xreg0", (2 << 32, 0xFFFF << 32))])


def ken_flow_mod() -> ken.OFPFlowMod:
    does = [ken.OFPActionSetField(reg4=7), ken.OFPActionGroup(9)]
    return ken.OFPFlowMod(
        Datapath,
        cookie=FLOW.cookie,
        table_id=41,
        priority=200,
        match=ken_match(),
        instructions=[ken.OFPInstructionActions(ken_constants.OFPIT_APPLY_ACTIONS, does)],
        out_port=ken_constants.OFPP_ANY,
        out_group=ken_constants.OFPG_ANY,
    )


def ken_deletion(command: int, table: int, priority: int, match: ken.OFPMatch) -> ken.OFPFlowMod:
    return ken.OFPFlowMod(
        Datapath,
        command=command,
        table_id=table,
        priority=priority,
        match=match,
        out_port=ken_constants.OFPP_ANY,
        out_group=ken_constants.OFPG_ANY,
    )


def ken_group_mod(command: int, identity: int, *buckets: ken.OFPBucket) -> ken.OFPGroupMod:
    # Four bytes of padding, the name of the method in sixteen, its parameter: as 4-byte words.
    by_hash = struct.unpack("!7I", struct.pack("!4x16sQ", b"dp_hash", 0))
    method = ken.OFPGroupPropExperimenter(type_=0xFFFF, experimenter=0x154D, exp_type=1, data=list(by_hash))
    return ken.OFPGroupMod(
        Datapath,
        command=command,
        type_=ken_constants.OFPGT_SELECT,
        group_id=identity,
        command_bucket_id=0xFFFFFFFF,
        buckets=list(buckets),
        properties=[method] if buckets else [],
    )


def ken_bucket() -> ken.OFPBucket:
    nat = ken.NXActionNAT(flags=2, range_ipv4_min=str(ENDPOINT), range_proto_min=8080)
    ct = ken.NXActionCT(flags=1, zone_src="", zone_ofs_nbits=1, recirc_table=105, alg=0, actions=[nat])
    weight = ken.OFPGroupBucketPropWeight(type_=ken_constants.OFPGBPT_WEIGHT, weight=50)
    return ken.OFPBucket(3, [ct, ken.NXActionResubmitTable(table_id=6)], [weight])


def ken_meter_mod(command: int) -> ken.OFPMeterMod:
    flags = ken_constants.OFPMF_PKTPS | ken_constants.OFPMF_BURST | ken_constants.OFPMF_STATS
    return ken.OFPMeterMod(Datapath, command, flags, 7, [ken.OFPMeterBandDrop(100, 200)])


def ken_bundle(kind: int) -> ken.OFPBundleCtrlMsg:
    return ken.OFPBundleCtrlMsg(Datapath, 4, kind, 3, [])


def ken_packet_out() -> ken.OFPPacketOut:
    return ken.OFPPacketOut(
        Datapath,
        buffer_id=ken_constants.OFP_NO_BUFFER,
        match=ken.OFPMatch(in_port=LOCAL_PORT),
        actions=[ken.OFPActionOutput(7, max_len=0)],
        data=PACKET,
    )


CASES = {
    "echo request": Case(
        messages.echo_request(XID, b"alive?"),
        ("OFPT_ECHO_REQUEST", "6 bytes"),
        lambda: ken.OFPEchoRequest(Datapath, b"alive?"),
    ),
    "echo reply": Case(
        messages.echo_reply(XID, b"alive?"), ("OFPT_ECHO_REPLY", "6 bytes"), lambda: _echo_reply(b"alive?")
    ),
    "barrier": Case(messages.barrier_request(XID), ("OFPT_BARRIER_REQUEST",), lambda: ken.OFPBarrierRequest(Datapath)),
    "events, please": Case(
        messages.ask_for_events(XID),
        ("OFPT_SET_CONFIG", "miss_send_len=65535"),
        lambda: ken.OFPSetConfig(Datapath, 0, 0xFFFF),
    ),
    "changes of groups and meters, please": Case(
        messages.ask_for_forwards(XID),
        ("OFPT_SET_ASYNC", "primary:", "REQUESTFORWARD", "group_mod_request meter_mod_request"),
        lambda: ken.OFPSetAsync(
            Datapath, [ken.OFPAsyncConfigPropReasons(ken_constants.OFPACPT_REQUESTFORWARD_MASTER, mask=3)]
        ),
    ),
    "userdata, please": Case(
        packets.ask_for_userdata(XID),
        ("NXT_SET_PACKET_IN_FORMAT", "format=nxt_packet_in2"),
        lambda: ken.OFPExperimenter(Datapath, 0x2320, 16, (2).to_bytes(4)),
    ),
    "flow added": Case(
        flows.add(FLOW, XID),
        (
            *("OFPT_FLOW_MOD", "ADD table:41 priority=200,tcp,reg0=0x2/0xffff,nw_dst=10.96.0.10,tp_dst=80"),
            *(f"cookie:{FLOW.cookie:#x}", "actions=set_field:0x7->reg4,group:9"),
        ),
        ken_flow_mod,
    ),
    "flow deleted": Case(
        flows.delete(FLOW, XID),
        ("DEL_STRICT table:41 priority=200,tcp,reg0=0x2/0xffff,nw_dst=10.96.0.10,tp_dst=80",),
        lambda: ken_deletion(ken_constants.OFPFC_DELETE_STRICT, 41, 200, ken_match()),
    ),
    "flow dump": Case(flows.dump_request(XID), ("OFPST_FLOW request",), lambda: ken.OFPFlowDescStatsRequest(Datapath)),
    "flow dump of one table": Case(
        flows.dump_request(XID, 41),
        ("OFPST_FLOW request", "table=41"),
        lambda: ken.OFPFlowDescStatsRequest(Datapath, table_id=41),
    ),
    "flow dump of one cookie": Case(
        flows.dump_request(XID, 41, cookie=0xABC),
        ("OFPST_FLOW request", "table=41"),
        lambda: ken.OFPFlowDescStatsRequest(Datapath, table_id=41, cookie=0xABC, cookie_mask=(1 << 64) - 1),
    ),
    "group added": Case(
        groups.add(GROUP, XID),
        (
            *("OFPT_GROUP_MOD", "ADD group_id=9,type=select,selection_method=dp_hash,bucket=bucket_id:3,weight:50"),
            "actions=ct(commit,table=105,zone=1,nat(dst=172.16.2.5:8080)),resubmit(,6)",
        ),
        lambda: ken_group_mod(ken_constants.OFPGC_ADD, 9, ken_bucket()),
    ),
    "group modified": Case(
        groups.modify(GROUP, XID),
        ("MOD group_id=9,type=select",),
        lambda: ken_group_mod(ken_constants.OFPGC_MODIFY, 9, ken_bucket()),
    ),
    "group deleted": Case(
        groups.delete(9, XID), ("DEL group_id=9",), lambda: ken_group_mod(ken_constants.OFPGC_DELETE, 9)
    ),
    "all groups deleted": Case(
        groups.delete(groups.ALL_GROUPS, XID),
        ("DEL group_id=",),
        lambda: ken_group_mod(ken_constants.OFPGC_DELETE, ken_constants.OFPG_ALL),
    ),
    "group dump": Case(
        groups.dump_request(XID), ("OFPST_GROUP_DESC request",), lambda: ken.OFPGroupDescStatsRequest(Datapath)
    ),
    "meter added": Case(
        meters.add(METER, XID),
        ("OFPT_METER_MOD", "ADD meter=7 pktps burst stats bands=", "type=drop rate=100 burst_size=200"),
        lambda: ken_meter_mod(ken_constants.OFPMC_ADD),
    ),
    "meter modified": Case(
        meters.modify(METER, XID), ("MOD meter=7 pktps",), lambda: ken_meter_mod(ken_constants.OFPMC_MODIFY)
    ),
    "meter deleted": Case(
        meters.delete(METER, XID),
        ("DEL meter=7",),
        lambda: ken.OFPMeterMod(Datapath, ken_constants.OFPMC_DELETE, 0, 7),
    ),
    "meter dump": Case(
        meters.dump_request(XID),
        ("OFPST_METER_CONFIG request", "meter=all"),
        lambda: ken.OFPMeterDescStatsRequest(Datapath),
    ),
    "statistics of meters": Case(
        meters.statistics_request(XID),
        ("OFPST_METER request", "meter=all"),
        lambda: ken.OFPMeterStatsRequest(Datapath),
    ),
    "monitor": Case(
        monitors.monitor_request(5, XID),
        ("OFPST_FLOW_MONITOR request", "id=5"),
        lambda: ken.OFPFlowMonitorRequest(Datapath, monitor_id=5, monitor_flags=2 | 4 | 8 | 16),
    ),
    "monitor cancelled": Case(
        monitors.cancel_request(5, XID),
        ("OFPST_FLOW_MONITOR request", "id=5"),
        lambda: ken.OFPFlowMonitorRequest(Datapath, monitor_id=5, command=ken_constants.OFPFMC_DELETE),
    ),
    "bundle opened": Case(
        bundles.open_(4, XID),
        ("OFPT_BUNDLE_CONTROL", "bundle_id=0x4 type=OPEN_REQUEST flags=atomic ordered"),
        lambda: ken_bundle(ken_constants.OFPBCT_OPEN_REQUEST),
    ),
    "bundle filled": Case(
        bundles.add(4, flows.add(FLOW, XID)),
        ("OFPT_BUNDLE_ADD_MESSAGE", "bundle_id=0x4 flags=atomic ordered", "ADD table:41 priority=200"),
        lambda: ken.OFPBundleAddMsg(Datapath, 4, 3, _with_xid(ken_flow_mod()), []),
    ),
    "bundle committed": Case(
        bundles.commit(4, XID), ("type=COMMIT_REQUEST",), lambda: ken_bundle(ken_constants.OFPBCT_COMMIT_REQUEST)
    ),
    "packet out": Case(
        packets.packet_out(PACKET, LOCAL_PORT, (Output(7),), XID),
        ("OFPT_PACKET_OUT", "in_port=LOCAL", "actions=output:7", "data_len=60"),
        ken_packet_out,
    ),
}


def _echo_reply(data: bytes) -> ken.OFPEchoReply:
    message = ken.OFPEchoReply(Datapath)
    message.data = data
    return message


def _with_xid(message: MsgBase) -> MsgBase:
    message.set_xid(XID)
    return message


@requires_ovs
@pytest.mark.parametrize("name", CASES)
def test_ovs_ofctl_decodes_our_messages_as_intended(name: str) -> None:
    text = printed(CASES[name].ours)
    for words in CASES[name].ovs_ofctl:
        assert words in text


@pytest.mark.parametrize("name", CASES)
def test_os_ken_would_send_the_same_bytes(name: str) -> None:
    case = CASES[name]
    assert case.ours.hex(" ", 4) == bytes_of(case.os_ken()).hex(" ", 4)


@requires_ovs
def test_hello_offers_our_version() -> None:
    """os-ken cannot build the elements of a hello, but reads them."""
    hello = messages.hello(XID)
    assert [element.versions for element in taken_apart(hello).elements] == [[messages.VERSION]]
    assert "version bitmap: 0x06" in printed(hello)


@given(flow=generated.flows())
@settings(max_examples=50, deadline=None)
def test_os_ken_reads_every_flow_and_writes_it_the_same(flow: Flow) -> None:
    does = tuple(within_os_ken(flow.actions))
    ours = flows.add(flows.encode(Flow(flow.table, flow.priority, flow.match, does, "")), XID)
    message = taken_apart(ours)
    assert (message.table_id, message.priority) == (flow.table, flow.priority)
    assert bytes_of(message).hex(" ", 4) == ours.hex(" ", 4)


def within_os_ken(actions: Actions) -> Iterator[Action]:
    """What os-ken can do with actions.

    It reads past the end of a copied field (the next test has it build one), writes the padding of a translation
    behind the action that follows it, cannot learn fields that it does not know, and knows no meter of packets to a
    controller.
    """
    for action in actions:
        if isinstance(action, Ct) and action.nat:
            yield structs.replace(action, sets=())
        elif isinstance(action, ToController):
            yield structs.replace(action, meter=0)
        elif isinstance(action, Learn):
            yield structs.replace(action, specs=tuple(filter(os_ken_knows, action.specs)))
        elif not isinstance(action, Move):
            yield action


def os_ken_knows(spec: LearnMatch | LearnLoad) -> bool:
    return not {bits.field for bits in (spec.to, spec.source) if isinstance(bits, Bits)} & {
        ND_RESERVED,
        ND_OPTIONS_TYPE,
    }


@requires_ovs
def test_a_copied_field() -> None:
    ours = flows.add(flows.encode(Flow(0, 1, (), (Move(ETH_SRC.whole, ETH_DST[0:48]),), "")), XID)
    copied = bytearray()
    ken.OFPActionCopyField(48, 0, 0, ["eth_src", "eth_dst"]).serialize(copied, 0)
    assert ours.endswith(copied)
    assert "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]" in printed(ours)


@requires_ovs
def test_a_packet_to_the_controller_with_userdata() -> None:
    flow = Flow(0, 1, match(ip(Family.IPV6)), (ToController(b"\1\2\3"),), "")
    ours = flows.add(flows.encode(flow), XID)
    (instruction,) = taken_apart(ours).instructions
    (action,) = instruction.actions
    assert isinstance(action, ken.NXActionController2)
    assert action.userdata == [1, 2, 3]
    assert "controller(userdata=01.02.03)" in printed(ours)


@requires_ovs
def test_packets_to_the_controller_with_a_meter() -> None:
    """os-ken knows no meters of packets to a controller."""
    flow = Flow(0, 1, match(ip(Family.IPV6)), (ToController(b"\1\2\3", meter=7),), "")
    assert "controller(userdata=01.02.03,meter_id=7)" in printed(flows.add(flows.encode(flow), XID))
