"""The text form for people. test_canonical_bytes shows that ovs-ofctl reads it as we mean it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from windlass.model.families import Family
from windlass.openflow.actions import (
    BACK,
    Action,
    Clone,
    Ct,
    Goto,
    Learn,
    LearnLoad,
    LearnMatch,
    Nat,
    Output,
    OutputTo,
    Resubmit,
    Set,
    ToController,
    ToGroup,
    move,
)
from windlass.openflow.conditions import (
    ARP,
    destination,
    destination_port,
    icmp,
    ip,
    protocol,
    source,
    tunnel_destination,
)
from windlass.openflow.fields import (
    ARP_OP,
    ARP_SHA,
    ARP_THA,
    CT_LABEL,
    CT_MARK,
    CT_STATE,
    ETH_DST,
    ETH_TYPE,
    IN_PORT,
    IP_FRAG,
    IP_PROTO,
    IPV4_SRC,
    LOCAL_PORT,
    ND_TARGET,
    TCP,
    TCP_DST,
    TCP_FLAGS,
    UDP,
    mac,
    reg,
)
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import Condition, match
from windlass.openflow.ofctl import flow_text, group_text

SERVICE = IPv4Address("10.96.0.10")
VIRTUAL_MAC = mac("aa:bb:cc:dd:ee:ff")

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "": (),
    "in_port=LOCAL": (IN_PORT(LOCAL_PORT),),
    "in_port=3,reg0=0x2/0xffff": (reg(0)[0:16](2), IN_PORT(3)),
    "ip,ip_dst=10.1.0.0/24": (destination(IPv4Network("10.1.0.0/24")),),
    "ip": (destination(IPv4Network("0.0.0.0/0")),),
    "ipv6,ipv6_src=fd00:10::/64": (source(IPv6Network("fd00:10::/64")),),
    "tcp,ip_dst=10.96.0.10,tcp_dst=80,ct_state=+new+trk": (
        destination(SERVICE),
        destination_port(Family.IPV4, TCP, 80),
        CT_STATE(0x21, 0x21),
    ),
    "udp6,udp_dst=0x3c0/0xfff0": (destination_port(Family.IPV6, UDP, 0x3C0, 0xFFF0),),
    "icmp6,icmpv6_type=135,nd_target=fd00::1": (icmp(Family.IPV6, 135), ND_TARGET(int(IPv6Address("fd00::1")))),
    "ip,ip_proto=89": (protocol(Family.IPV4, 89),),
    "tcp,tcp_flags=+syn-ack": (protocol(Family.IPV4, TCP), TCP_FLAGS(0x002, 0x012)),
    "ip,ip_frag=later": (ip(Family.IPV4), IP_FRAG(3)),
    "arp,arp_op=1": (ARP, ARP_OP(1)),
    "eth_dst=01:00:00:00:00:00/01:00:00:00:00:00": (ETH_DST(1 << 40, 1 << 40),),
    "eth_type=0x88cc": (ETH_TYPE(0x88CC),),
    "tun_dst=172.16.0.2,ct_state=-trk": (tunnel_destination(IPv4Address("172.16.0.2")), CT_STATE(0, 0x20)),
    "ct_mark=0x40/0x40,ct_label=0x1": (CT_MARK(0x40, 0x40), CT_LABEL(1)),
}

ACTIONS: dict[str, tuple[Action, ...]] = {
    "drop": (),
    "output:3,output:LOCAL,IN_PORT": (Output(3), Output(LOCAL_PORT), BACK),
    "output:reg1[],output:reg1[0..15]": (OutputTo(reg(1).whole), OutputTo(reg(1)[0:16])),
    "set_field:0x7->reg4,set_field:0x10000/0x10000->reg0": (Set(reg(4)(7)), Set(reg(0)[16](1))),
    "set_field:aa:bb:cc:dd:ee:ff->eth_dst,goto_table:110": (Set(ETH_DST(VIRTUAL_MAC)), Goto(110)),
    "move:arp_sha[]->arp_tha[]": (move(ARP_SHA, ARP_THA),),
    "ct(table=31,zone=65520,nat)": (Ct(65520, 31, nat=Nat()),),
    "ct(commit,table=106,zone=1,nat(dst=172.16.2.5:8080),exec(set_field:0x10/0x10->ct_mark))": (
        Ct(
            *(1, 106),
            commit=True,
            nat=Nat(to=IPv4Address("172.16.2.5"), ports=(8080, 8080)),
            sets=(Set(CT_MARK(0x10, 0x10)),),
        ),
    ),
    "ct(commit,zone=1,nat(src=[fd00::1]:1024-2048))": (
        Ct(1, commit=True, nat=Nat(source=IPv6Address("fd00::1"), ports=(1024, 2048))),
    ),
    "clone(ct(commit,zone=1))": (Clone((Ct(1, commit=True),)),),
    "ct(table=31,zone=reg7[16..31])": (Ct(reg(7)[16:32], 31),),
    "resubmit(,30),group:9": (Resubmit(30), ToGroup(9)),
    "controller(max_len=65535,userdata=01.ff,meter_id=3)": (ToController(b"\1\xff", 3),),
    "learn(table=40,priority=200,cookie=0xa,idle_timeout=300,delete_learned,"
    "eth_type=0x800,ip_proto=6,ip_src[]=ip_src[],tcp_dst=80,load:0x1->reg4[16],load:reg3[]->reg3[])": (
        Learn(
            *(40, 200, 10),
            (
                LearnMatch(ETH_TYPE.whole, 0x800),
                LearnMatch(IP_PROTO.whole, TCP),
                LearnMatch(IPV4_SRC.whole, IPV4_SRC.whole),
                LearnMatch(TCP_DST.whole, 80),
                LearnLoad(reg(4)[16], 1),
                LearnLoad(reg(3).whole, reg(3).whole),
            ),
            idle_timeout=300,
            delete_learned=True,
        ),
    ),
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text: str) -> None:
    flow = Flow(70, 200, match(*CONDITIONS[text]), (), "")
    assert flow_text(flow) == f"table=70,priority=200{',' if text else ''}{text} actions=drop"


@pytest.mark.parametrize("text", ACTIONS)
def test_actions(text: str) -> None:
    assert flow_text(Flow(70, 200, (), ACTIONS[text], "")) == f"table=70,priority=200 actions={text}"


def test_a_group() -> None:
    group = Group(9, (Bucket(0, (Output(1),)), Bucket(1, (), 0)), "two endpoints, one of them on its way out")
    assert group_text(group) == (
        "group_id=9,type=select,selection_method=dp_hash,"
        "bucket=bucket_id:0,weight:100,actions=output:1,bucket=bucket_id:1,weight:0,actions=drop"
    )
