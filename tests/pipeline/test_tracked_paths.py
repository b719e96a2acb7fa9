"""What the Windows datapath cannot do with connections is found in the flows, whatever path leads there."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from itertools import chain

import pytest

from windlass.model.families import Family
from windlass.openflow.actions import Action, Ct, Goto, Nat, Output, Resubmit, Set, ToGroup
from windlass.openflow.conditions import icmp, ip, protocol
from windlass.openflow.fields import CT_LABEL, IN_PORT, TCP, Term
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.pipeline.packet_marks import FROM_POD, FROM_UPLINK
from windlass.pipeline.tracked_paths import mistakes
from windlass.pipeline.tracking import CT_DENIED, CT_SERVICE, ESTABLISHED_ORIGINAL, INVALID, NEW, ORIGINAL, REPLY

TCP_PACKETS = protocol(Family.IPV4, TCP)
ENDPOINT = Nat(to=IPv4Address("172.16.1.9"), ports=(80, 80))
AS_NODE = Nat(IPv4Address("192.168.77.1"))
LOOK_UP = Ct(1, table=10, nat=Nat())
REPLY_AGAIN = "a second ct in zone 1 treats a reply as a packet of the client"
NOT_NEW = "a commit must be for a packet that begins a connection, or only mark the connection of a client's packet"
TRANSLATED = "a second commit in zone 1 does not change the translation"
NOT_COMMITTED = "the choice of a group must be committed as a translation at once"
CHOSEN_AGAIN = "a group would choose again for packets that do not begin a connection"


def flow(table: int, when: tuple[Term, ...], *actions: Action, priority: int = 200) -> Flow:
    return Flow(table, priority, when, actions, "a test")


def after_look_up(*flows: Flow, groups: tuple[Group, ...] = ()) -> tuple[str, ...]:
    return all_mistakes([flow(0, TCP_PACKETS, LOOK_UP), *flows], groups)


def all_mistakes(flows: Sequence[Flow], groups: Sequence[Group] = ()) -> tuple[str, ...]:
    """Those of all kinds of packets, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(mistakes(flows, groups))))


@pytest.mark.parametrize(
    ("when", "action"),
    [
        ((NEW,), Ct(1, commit=True)),
        ((NEW,), Ct(1, table=20, commit=True, nat=ENDPOINT, sets=(CT_SERVICE.set(),))),
        ((NEW,), Ct(2, commit=True, nat=AS_NODE)),
        ((ESTABLISHED_ORIGINAL,), Ct(2, table=20, nat=Nat())),
        ((REPLY,), Ct(2, table=20, nat=Nat())),
        ((ESTABLISHED_ORIGINAL,), Ct(1, commit=True, sets=(CT_DENIED.set(),))),
        ((ORIGINAL, CT_DENIED.bits(1)), Ct(1, commit=True, sets=(CT_DENIED.clear(),))),
    ],
)
def test_what_windows_can_do_after_a_look_up(when, action):
    assert after_look_up(flow(10, when, action, Output(1))) == ()


@pytest.mark.parametrize(
    ("when", "action", "found"),
    [
        ((REPLY,), Ct(1, table=20, nat=Nat()), [REPLY_AGAIN]),
        ((), Ct(1, table=20, nat=Nat()), [REPLY_AGAIN]),
        ((), Ct(2, commit=True), [NOT_NEW]),
        ((REPLY,), Ct(1, commit=True, sets=(CT_DENIED.set(),)), [REPLY_AGAIN, NOT_NEW]),
        ((ESTABLISHED_ORIGINAL,), Ct(1, commit=True), [NOT_NEW]),
        ((ESTABLISHED_ORIGINAL,), Ct(2, commit=True, nat=AS_NODE), [NOT_NEW]),
        ((ESTABLISHED_ORIGINAL,), Ct(1, commit=True, sets=(Set(CT_LABEL(1)),)), [NOT_NEW]),
    ],
)
def test_what_windows_cannot_do_after_a_look_up(when, action, found):
    assert after_look_up(flow(10, when, action)) == tuple(f"table 10 priority 200: {one}" for one in found)


def test_what_is_known_of_a_connection_holds_in_later_tables():
    commit = flow(20, (), Ct(1, commit=True))
    assert after_look_up(flow(10, (NEW,), Goto(20)), commit) == ()
    assert after_look_up(flow(10, (NEW,), Resubmit(20)), commit) == ()
    assert after_look_up(flow(10, (), Goto(20)), commit) == (
        f"table 20 priority 200: {REPLY_AGAIN}",
        f"table 20 priority 200: {NOT_NEW}",
    )


def test_a_zone_holds_one_translation_of_a_connection():
    to_endpoint = flow(10, (NEW,), Ct(1, table=20, commit=True, nat=ENDPOINT, sets=(CT_SERVICE.set(),)))
    as_node = Ct(1, commit=True, nat=AS_NODE)
    assert after_look_up(to_endpoint, flow(20, (NEW,), as_node)) == (f"table 20 priority 200: {TRANSLATED}",)
    assert after_look_up(to_endpoint, flow(20, (NEW, CT_SERVICE.unset), as_node)) == ()  # of other connections
    assert after_look_up(to_endpoint, flow(20, (NEW,), Ct(2, commit=True, nat=AS_NODE))) == ()


def test_ct_gets_only_what_it_can_track():
    found = all_mistakes([flow(0, (), Ct(1, table=1))])
    others = "other ICMP", "SCTP", "GRE", "IGMP", "ARP", "TCP over IPv6", "UDP over IPv6", "ICMPv6"
    assert sorted(found) == sorted(f"table 0 priority 200: ct does not support {kind}" for kind in others)
    tracked = [flow(0, TCP_PACKETS, Ct(1, table=1)), flow(0, icmp(Family.IPV4, 8), Ct(1, table=1))]
    assert all_mistakes([*tracked, flow(0, (ip(Family.IPV4),), Output(1), priority=1)]) == ()


def test_icmp_errors_are_handled_before_invalid_packets_are_dropped():
    errors = icmp(Family.IPV4, 3)
    from_wire = flow(0, (*errors, IN_PORT(1)), FROM_UPLINK.set(), LOOK_UP)
    drop = flow(10, (INVALID,))
    to_host = flow(10, (*errors, INVALID, *FROM_UPLINK), Output(1), priority=210)
    elsewhere = flow(10, (*errors, INVALID, *FROM_POD), Output(1), priority=210)
    found = ("table 10 priority 200: ct reports ICMP errors (unreachable) as invalid, and this drops them",)
    assert all_mistakes([from_wire, drop, to_host]) == ()
    assert all_mistakes([from_wire, drop]) == found
    assert all_mistakes([from_wire, drop, elsewhere]) == found


def test_a_choice_of_a_group_is_committed_at_once_and_never_made_again():
    committed = Group(7, (Bucket(1, (Ct(1, table=20, commit=True, nat=ENDPOINT),)),), "a test")
    written = Group(7, (Bucket(1, (Set(CT_SERVICE.bits(1)), Output(1))),), "a test")
    elsewhere = Group(7, (Bucket(1, (Resubmit(30),)),), "a test")
    to_group = flow(10, (NEW,), ToGroup(7))
    assert after_look_up(to_group, groups=(committed,)) == ()
    assert after_look_up(to_group, groups=(written,)) == (f"table 10 priority 200: {NOT_COMMITTED}",)
    translate = flow(30, (), Ct(1, table=40, commit=True, nat=ENDPOINT))
    assert after_look_up(to_group, translate, groups=(elsewhere,)) == ()
    assert after_look_up(to_group, flow(30, (), Output(1)), groups=(elsewhere,)) == (
        f"table 30 priority 200: {NOT_COMMITTED}",
    )
    assert after_look_up(flow(10, (ESTABLISHED_ORIGINAL,), ToGroup(7)), groups=(committed,)) == (
        f"table 10 priority 200: {CHOSEN_AGAIN}",
        f"table 10 priority 200: {NOT_NEW}",
    )
