"""Flows and groups in the words of the declarations: what the goldens and `windlass render` show."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest

from windlass.openflow.actions import (
    BACK,
    Ct,
    Goto,
    Learn,
    LearnLoad,
    LearnMatch,
    Move,
    Nat,
    Output,
    OutputTo,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    CT_LABEL,
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    IN_PORT,
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    LOCAL_PORT,
    TCP_DST,
    reg,
)
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.pipeline.packet_marks import CLIENT_ZONE, FROM_POD, OUT_PORT, SNAT, SOURCE
from windlass.pipeline.symbols import actions_symbols, flow_symbols, group_symbols, match_symbols
from windlass.pipeline.tracking import CT_SNAT, INVALID, NEW, UNTRACKED


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ((), ""),
        ((FROM_POD, SNAT), "source=Pod snat"),
        ((SOURCE.is_(9),), "source=9"),
        ((SNAT.bits(0),), "no snat"),
        ((CT_SNAT,), "ct-snat"),
        ((OUT_PORT.is_(7),), "out=7"),
        ((NEW,), "ct=+new-inv+trk"),
        ((INVALID,), "ct=+inv+trk"),
        ((UNTRACKED,), "ct=-trk"),
        ((IN_PORT(LOCAL_PORT),), "in_port=LOCAL"),
        ((ETH_TYPE(0x88CC),), "eth_type=0x88cc"),
        ((IP_PROTO(2),), "ip_proto=2"),
        ((IPV4_DST(0x0A000000, 0xFF000000),), "ip_dst=10.0.0.0/8"),
        ((IPV4_DST(0x0A000001, 0xFF0000FF),), "ip_dst=10.0.0.1/0xff0000ff"),
        ((IPV6_DST(1),), "ipv6_dst=::1"),
        ((ETH_SRC(1 << 40, 1 << 40),), "eth_src=01:00:00:00:00:00/01:00:00:00:00:00"),
        ((TCP_DST(0x4000, 0xE000),), "tcp_dst=0x4000/0xe000"),
        ((reg(9)[0:8](7),), "reg9=0x7/0xff"),
    ],
)
def test_conditions(conditions, words):
    assert " ".join(match_symbols(match(*conditions))) == words


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ((), "drop"),
        ((Output(3), BACK), "output 3, output IN_PORT"),
        ((OutputTo(OUT_PORT.bits),), "output out"),
        ((SNAT.set(), OUT_PORT.load(2)), "set snat, set out=2"),
        (
            (Move(ETH_SRC.whole, ETH_DST.whole), Move(reg(9)[0:8], reg(9)[8:16])),
            "move eth_src to eth_dst, move reg9[0:8] to reg9[8:16]",
        ),
        ((Goto(70), Resubmit(30)), "goto L3Forwarding, resubmit Conntrack"),
        ((Ct(5, table=31, nat=Nat()),), "ct(zone 5, nat, goto ConntrackState)"),
        (
            (Ct(5, commit=True, nat=Nat(source=IPv4Address("10.0.0.1"), ports=(1, 9)), sets=(CT_SNAT.set(),)),),
            "ct(zone 5, commit, nat source=10.0.0.1:1-9, set ct-snat)",
        ),
        (
            (Ct(5, commit=True, nat=Nat(to=IPv6Address("fd00::1"), ports=(80, 80))),),
            "ct(zone 5, commit, nat to=[fd00::1]:80)",
        ),
        ((Ct(5, commit=True, nat=Nat(to=IPv4Address("10.0.0.1"))),), "ct(zone 5, commit, nat to=10.0.0.1)"),
        (
            (Ct(5, commit=True, sets=(Set(CT_LABEL(3 << 32, 7 << 32)),)),),
            "ct(zone 5, commit, set ct_label=0x300000000/0x700000000)",
        ),
        ((Ct(CLIENT_ZONE.bits, nat=Nat()),), "ct(zone client-zone, nat)"),
        ((ToGroup(7),), "group 7"),
        ((ToController(b"reject", meter=3),), "controller(reject, meter 3)"),
        (
            (Learn(70, 200, 1, (LearnMatch(IPV4_SRC.whole, IPV4_DST.whole), LearnLoad(OUT_PORT.bits, 3))),),
            "learn(L3Forwarding 200 ip_src=ip_dst -> set out=3)",
        ),
    ],
)
def test_actions(actions, words):
    assert actions_symbols(actions) == words


def test_a_flow():
    assert (
        flow_symbols(Flow(110, 200, (), (OutputTo(OUT_PORT.bits),), "out")) == "L2ForwardingOut 200 any -> output out"
    )


def test_a_group():
    group = Group(7, (Bucket(1, (Output(3),)), Bucket(2, (), weight=50)), "two endpoints")
    assert list(group_symbols(group)) == [
        "group 7 select",
        "  bucket 1 weight 100 -> output 3",
        "  bucket 2 weight 50 -> drop",
    ]
