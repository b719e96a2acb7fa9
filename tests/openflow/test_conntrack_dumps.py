"""Connections are read from a dump: UDP, and TCP with a flag in its mark; others are left out."""

from __future__ import annotations

from windlass.model.services import Protocol
from windlass.openflow.conntrack_dumps import TrackedConnection, tcp_connections, udp_connections

# As Open vSwitch 3.1 prints it.
DUMP = """\
udp,orig=(src=172.16.1.2,dst=10.96.0.10,sport=40001,dport=53),reply=(src=172.16.2.3,dst=172.16.1.2,sport=5353,dport=40001),zone=65520,mark=160
tcp,orig=(src=172.16.1.2,dst=172.16.2.3,sport=40002,dport=80),reply=(src=172.16.2.3,dst=172.16.1.2,sport=80,dport=40002),zone=65520,protoinfo=(state=ESTABLISHED)
udp,orig=(src=fd00::2,dst=fd00::3,sport=40003,dport=53),reply=(src=fd00::3,dst=fd00::2,sport=53,dport=40003),zone=65520
icmp,orig=(src=172.16.1.2,dst=172.16.2.3,id=1,type=8,code=0),reply=(src=172.16.2.3,dst=172.16.1.2,id=1,type=0,code=0),zone=65520
udp,orig=(src=172.16.1.2,dst=192.0.2.1,sport=40004,dport=53),reply=(src=192.0.2.1,dst=10.0.0.1,sport=53,dport=61001),zone=65520,mark=64,labels=0x1
tcp,orig=(src=172.16.1.2,dst=10.96.0.10,sport=40005,dport=80),reply=(src=172.16.2.3,dst=172.16.1.2,sport=8080,dport=40005),zone=65520,mark=160,protoinfo=(state=ESTABLISHED)
tcp,orig=(src=172.16.1.2,dst=10.96.0.10,sport=40006,dport=80),reply=(src=172.16.2.3,dst=172.16.1.2,sport=8080,dport=40006),zone=65520,mark=160,protoinfo=(state=SYN_SENT)
tcp,orig=(src=172.16.1.2,dst=10.96.0.10,sport=40007,dport=80),reply=(src=172.16.2.3,dst=172.16.1.2,sport=8080,dport=40007),zone=65520,mark=32,protoinfo=(state=ESTABLISHED)
tcp,orig=(src=172.16.1.2,dst=10.96.0.10,sport=40008,dport=80),reply=(src=172.16.2.3,dst=172.16.1.2,sport=8080,dport=40008),zone=65520,mark=256,protoinfo=(state=ESTABLISHED)
tcp,orig=(src=fd00::2,dst=fd00::3,sport=40009,dport=80),reply=(src=fd00::3,dst=fd00::2,sport=80,dport=40009),zone=65520,mark=128,labels=0x1,protoinfo=(state=ESTABLISHED)
"""


def test_udp_connections_of_both_families_are_read():
    assert list(udp_connections(DUMP)) == [
        TrackedConnection("172.16.1.2", 40001, "10.96.0.10", 53, "172.16.2.3", 5353, "172.16.1.2", 40001, mark=160),
        TrackedConnection("fd00::2", 40003, "fd00::3", 53, "fd00::3", 53, "fd00::2", 40003, mark=0),
        TrackedConnection("172.16.1.2", 40004, "192.0.2.1", 53, "192.0.2.1", 53, "10.0.0.1", 61001, mark=64),
    ]


def test_tcp_connections_are_read_if_they_are_open_and_have_the_flag():
    assert list(tcp_connections(DUMP, 128)) == [
        TrackedConnection(
            "172.16.1.2", 40005, "10.96.0.10", 80, "172.16.2.3", 8080, "172.16.1.2", 40005, 160, Protocol.TCP
        ),
        TrackedConnection("fd00::2", 40009, "fd00::3", 80, "fd00::3", 80, "fd00::2", 40009, 128, Protocol.TCP),
    ]
