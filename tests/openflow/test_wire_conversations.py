"""Conversations with a real switch: we read its replies and its reports."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from channels import Bridge, Channel

from switches import requires_ovs
from windlass.model.families import Family
from windlass.openflow.actions import Ct, Goto, Nat, Output, Set, ToController, ToGroup
from windlass.openflow.conditions import destination, destination_port, ip
from windlass.openflow.fields import CT_MARK, IN_PORT, IPV4_DST, LOCAL_PORT, TCP_DST, Bits, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import bundles, errors, flows, groups, messages, monitors, packets
from windlass.openflow.wire.messages import MalformedMessage, MultipartType, Type
from windlass.openflow.wire.monitors import FlowUpdate

pytestmark = requires_ovs

OPEN_REPLY = 1  # of a bundle


def a_flow(priority: int, *actions: Output | Goto | ToGroup) -> flows.EncodedFlow:
    return flows.encode(Flow(3, priority, match(ip(Family.IPV4)), actions, "for this test"))


REFUSED = {
    "ACTION_MATCH_INCONSISTENT": Flow(0, 1, (), (Set(IPV4_DST(1)),), ""),
    "ACTION_BAD_GROUP": Flow(0, 1, (), (ToGroup(0xFFFFFFFC),), ""),
    "ACTION_BAD_OUT_PORT": Flow(0, 1, (), (Output(0x10000),), ""),
    "ACTION_BAD_ARGUMENT": Flow(0, 1, match(ip(Family.IPV4)), (Ct(1, sets=(Set(CT_MARK(1)),)),), ""),
    "ACTION_BAD_SET_ARGUMENT": Flow(0, 1, (), (Set(IN_PORT(1)),), ""),
    "INSTRUCTION_BAD_TABLE": Flow(5, 1, (), (Goto(4),), ""),
    "MATCH_BAD_PREREQUISITE": Flow(0, 1, match(TCP_DST(80)), (), ""),
}


class TestErrors:
    """The switch reports which message it refused, and we describe the error in a sentence."""

    @pytest.mark.parametrize("name", REFUSED)
    def test_a_refused_flow(self, channel: Channel, name: str) -> None:
        xid = channel.xid()
        (error,) = channel.errors(flows.add(flows.encode(REFUSED[name]), xid))
        assert (error.name, error.xid) == (name, xid)
        assert name in str(error)
        assert channel.flows() == set()

    def test_an_error_of_open_vswitch_itself(self, channel: Channel) -> None:
        conjunction_and_more = flows.EncodedFlow(
            (0, 1, b""),
            bytes.fromhex("00040028 00000000 ffff0010 00002320 00220002 00000007 00000010 00000001 00000000 00000000"),
            1,
        )
        (error,) = channel.errors(flows.add(conjunction_and_more, 77))
        assert (error.name, error.xid) == ("NX_BAD_CONJUNCTION", 77)

    def test_refused_groups(self, channel: Channel) -> None:
        group = groups.encode(Group(5, (Bucket(1, ()), Bucket(1, ())), ""))
        assert [error.name for error in channel.errors(groups.add(group, 8))] == ["GROUP_BAD_BUCKET"]
        group = groups.encode(Group(5, (Bucket(1, ()),), ""))
        assert [error.name for error in channel.errors(groups.modify(group, 8))] == ["GROUP_UNKNOWN"]
        channel.accepts(groups.add(group, 8))
        assert [error.name for error in channel.errors(groups.add(group, 8))] == ["GROUP_EXISTS"]

    def test_an_unknown_error_is_reported_with_its_numbers(self) -> None:
        error = errors.parse_error(bytes([0, 99, 0, 98]))
        assert (error.name, error.xid) == ("error 99, 98", None)


class TestGroups:
    def test_one_too_large_for_a_dump_is_not_sent(self) -> None:
        """Open vSwitch 3.1 would accept it in parts, and crash at the next dump."""
        buckets = tuple(Bucket(number, (Ct(1, commit=True, nat=Nat()),)) for number in range(2000))
        with pytest.raises(groups.GroupTooLargeError, match=r"group 7 \(a Service\): its 2000 buckets"):
            groups.encode(Group(7, buckets, "a Service"))

    def test_the_largest_one_is_accepted_and_dumped(self, channel: Channel) -> None:
        nat = Nat(to=IPv6Address("fd00::1"), ports=(80, 90))
        largest = groups.LONGEST_BUCKETS // 80
        group = groups.encode(
            Group(7, tuple(Bucket(n, (Ct(1, commit=True, nat=nat),)) for n in range(largest)), "a Service")
        )
        another = groups.encode(Group(8, (Bucket(1, ()),), "another"))
        assert channel.commit(1, groups.add(group, 21), groups.add(another, 22)) == []
        assert channel.groups() == {group, another}

    def test_a_foreign_group_equals_none_of_ours_and_can_be_taken_over(self, bridge: Bridge, channel: Channel) -> None:
        bridge.ofctl("add-group", "group_id=1,type=all")
        bridge.ofctl("add-group", "group_id=2,type=select,selection_method=hash,bucket=bucket_id:1,actions=drop")
        ours = {groups.encode(Group(1, (), "")), groups.encode(Group(2, (Bucket(1, (), 1),), ""))}
        foreign = channel.groups()
        assert {group.identity for group in foreign} == {1, 2}
        assert not foreign & ours
        channel.accepts(*(groups.modify(group, channel.xid()) for group in ours))
        assert channel.groups() == ours

    def test_deleting_a_group_deletes_the_flows_that_lead_to_it(self, channel: Channel) -> None:
        group = groups.encode(Group(7, (), "a Service without endpoints"))
        channel.accepts(groups.add(group, channel.xid()), flows.add(a_flow(1, ToGroup(7)), channel.xid()))
        channel.accepts(groups.delete(7, channel.xid()))
        assert (channel.flows(), channel.groups()) == (set(), set())


class TestFlows:
    def test_a_dump_of_one_table(self, channel: Channel) -> None:
        here, there = a_flow(1, Output(1)), flows.encode(Flow(4, 1, (), (), ""))
        channel.accepts(flows.add(here, channel.xid()), flows.add(there, channel.xid()))
        channel.send(flows.dump_request(99, table=3))
        _, body = channel.await_type(Type.MULTIPART_REPLY)
        part = messages.parse_multipart(body)
        assert (part.part, part.more) == (MultipartType.FLOWS, False)
        assert list(flows.dumped(part.body)) == [here]

    def test_adding_a_flow_with_a_known_key_replaces_it(self, channel: Channel) -> None:
        old, new = a_flow(1, Output(1)), a_flow(1, Output(2))
        assert old.key == new.key
        assert old.cookie != new.cookie
        channel.accepts(flows.add(old, channel.xid()), flows.add(new, channel.xid()))
        assert channel.flows() == {new}

    def test_a_dump_in_several_parts(self, channel: Channel) -> None:
        many = {a_flow(priority, Output(1), Goto(9)) for priority in range(2000)}
        channel.accepts(*(flows.add(flow, channel.xid()) for flow in many))
        assert channel.flows() == many

    def test_a_dump_that_is_cut_is_refused(self, channel: Channel) -> None:
        channel.accepts(flows.add(a_flow(1, Output(1)), channel.xid()))
        channel.send(flows.dump_request(99))
        _, body = channel.await_type(Type.MULTIPART_REPLY)
        with pytest.raises(MalformedMessage, match="a flow in a dump has a length of"):
            list(flows.dumped(messages.parse_multipart(body).body[:-8]))


class TestBundles:
    def test_a_bundle_applies_all_its_messages(self, channel: Channel) -> None:
        group = groups.encode(Group(7, (), ""))
        one, two = a_flow(1, ToGroup(7)), a_flow(2, Output(1))
        assert channel.commit(1, groups.add(group, 31), flows.add(one, 32), flows.add(two, 33)) == []
        assert channel.flows() == {one, two}

    def test_a_bundle_with_an_error_applies_nothing_and_names_the_message(self, channel: Channel) -> None:
        good, bad = a_flow(1, Output(1)), a_flow(2, ToGroup(12345))
        refused = channel.commit(1, flows.add(good, 32), flows.add(bad, 33))
        assert (refused[0].name, refused[0].xid) == ("ACTION_BAD_GROUP", 33)
        assert refused[-1].name == "BUNDLE_MESSAGE_FAILED"
        assert channel.flows() == set()

    def test_bundle_replies(self, channel: Channel) -> None:
        channel.send(bundles.open_(6, 41))
        header, body = channel.await_type(Type.BUNDLE_CONTROL)
        assert (header.xid, struct.unpack_from("!IH", body)) == (41, (6, OPEN_REPLY))


class TestPackets:
    PACKET = bytes.fromhex("ffffffffffff0a5801020304 0800") + bytes(range(46))

    def test_a_packet_in_has_its_reason(self, channel: Channel) -> None:
        """The flow that sends it gives its registers and its reason."""
        does = (Set(Bits(reg(5), 4, 8)(0x7F)), ToController(b"rejected"))
        flow = flows.encode(Flow(0, 1, match(IN_PORT(LOCAL_PORT)), does, ""))
        channel.accepts(
            *(messages.ask_for_events(channel.xid()), packets.ask_for_userdata(channel.xid())),
            flows.add(flow, channel.xid()),
        )
        to_the_tables = 0xFFFFFFF9
        channel.send(packets.packet_out(self.PACKET, LOCAL_PORT, (Output(to_the_tables),), channel.xid()))
        _, body = channel.await_type(Type.EXPERIMENTER)
        assert packets.is_packet_in(body)
        packet = packets.parse_packet_in(body)
        assert (packet.packet, packet.userdata) == (self.PACKET, b"rejected")
        assert (packet.table, packet.cookie, packet.in_port) == (0, flow.cookie, LOCAL_PORT)
        assert reg(5)(0x7F0) in packet.metadata

    def test_another_message_of_an_experimenter_is_no_packet(self) -> None:
        assert not packets.is_packet_in(messages.experimenter(26, 1)[8:])


class TestMonitors:
    """Changes by other controllers are reported, our own are not."""

    def test_changes_by_other_controllers_and_by_us_are_distinguished(
        self, channel: Channel, stranger: Channel
    ) -> None:
        channel.send(monitors.monitor_request(1, channel.xid()))
        assert self.updates(channel) == []
        first, second = a_flow(1, Output(1), Goto(9)), a_flow(1, Output(2))

        stranger.accepts(flows.add(first, 50))
        assert self.updates(channel) == [FlowUpdate(first)]
        stranger.accepts(flows.add(second, 51))  # replaces the first, but is reported as an addition
        assert self.updates(channel) == [FlowUpdate(second)]
        stranger.accepts(flows.delete(second, 52))
        assert self.updates(channel) == [FlowUpdate(second, removed=True)]
        channel.send(flows.add(first, 53))
        assert self.updates(channel) == []

    def test_one_can_be_cancelled(self, channel: Channel, stranger: Channel) -> None:
        channel.send(monitors.monitor_request(1, channel.xid()))
        assert self.updates(channel) == []
        channel.accepts(monitors.cancel_request(1, channel.xid()))
        stranger.accepts(flows.add(a_flow(1, Output(1)), 50))
        channel.accepts()
        channel.send(monitors.monitor_request(1, channel.xid()))
        assert self.updates(channel) == []

    @staticmethod
    def updates(channel: Channel) -> list[FlowUpdate]:
        _, body = channel.await_type(Type.MULTIPART_REPLY)
        return list(monitors.updates(messages.parse_multipart(body).body))


class TestFrames:
    def test_an_echo(self, channel: Channel) -> None:
        channel.send(messages.echo_request(7, b"alive?"))
        header, body = channel.await_type(Type.ECHO_REPLY)
        assert (header.xid, body) == (7, b"alive?")

    def test_a_peer_with_only_older_versions_is_an_error(self) -> None:
        hello = messages.Header(4, Type.HELLO, 8, 1)
        assert messages.VERSION not in messages.versions(hello, b"")
        assert messages.versions(hello, bytes.fromhex("0001 0008 00000012")) == {1, 4}

    def test_a_message_shorter_than_its_header(self) -> None:
        with pytest.raises(MalformedMessage, match="has a length of 4 bytes, less than its header"):
            messages.parse_header(bytes.fromhex("06000004 00000001"))


def test_a_goto_that_is_not_the_last_action_is_refused() -> None:
    with pytest.raises(ValueError, match="goto table 9 is not the last action"):
        flows.encode(Flow(0, 1, (), (Goto(9), Output(1)), ""))


def test_equal_flows_have_equal_cookies_whatever_their_reason() -> None:
    address = IPv4Address("10.96.0.1")
    one, other = (
        flows.encode(Flow(1, 2, match(destination(address), destination_port(Family.IPV4, 6, 80)), (), why))
        for why in ("one", "other")
    )
    assert one == other
