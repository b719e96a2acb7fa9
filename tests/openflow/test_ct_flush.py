"""The message that deletes conntrack entries, as ovs-ofctl reads it."""

from __future__ import annotations

import subprocess
from ipaddress import ip_address

import pytest

from switches import requires_ovs
from windlass.openflow.wire.ct_flush import Flush, flush

pytestmark = requires_ovs

ANY_V4 = "ct_nw_src=::,ct_nw_dst=::,ct_tp_src=0,ct_tp_dst=0"
ANY_V6 = "ct_ipv6_src=::,ct_ipv6_dst=::,ct_tp_src=0,ct_tp_dst=0"


@pytest.mark.parametrize(
    ("what", "original", "reply"),
    [
        (
            Flush(65520, 17, ip_address("10.96.0.1"), 53, ip_address("172.16.1.5"), 5353),
            "ct_nw_src=::,ct_nw_dst=10.96.0.1,ct_tp_src=0,ct_tp_dst=53",
            "ct_nw_src=172.16.1.5,ct_nw_dst=::,ct_tp_src=5353,ct_tp_dst=0",
        ),
        (
            Flush(65520, 17, ip_address("fd00:10:96::1"), 53, ip_address("fd00:172:16:1::5"), 5353),
            "ct_ipv6_src=::,ct_ipv6_dst=fd00:10:96::1,ct_tp_src=0,ct_tp_dst=53",
            "ct_ipv6_src=fd00:172:16:1::5,ct_ipv6_dst=::,ct_tp_src=5353,ct_tp_dst=0",
        ),
        (
            Flush(1, 17, None, 30053, ip_address("172.16.1.5"), 5353),
            "ct_nw_src=::,ct_nw_dst=::,ct_tp_src=0,ct_tp_dst=30053",
            "ct_nw_src=172.16.1.5,ct_nw_dst=::,ct_tp_src=5353,ct_tp_dst=0",
        ),
        (
            Flush(65520, 132, ip_address("10.96.0.1"), 53),
            "ct_nw_src=::,ct_nw_dst=10.96.0.1,ct_tp_src=0,ct_tp_dst=53",
            ANY_V4,
        ),
        (Flush(0, 6, ip_address("fd00::1"), 0), "ct_ipv6_src=::,ct_ipv6_dst=fd00::1,ct_tp_src=0,ct_tp_dst=0", ANY_V6),
    ],
)
def test_ovs_ofctl_reads_the_tuples(what: Flush, original: str, reply: str) -> None:
    message = flush(what, xid=7)
    assert len(message) % 8 == 0
    command = ("ovs-ofctl", "-O", "OpenFlow15", "ofp-print", message.hex())
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == (
        f"NXT_CT_FLUSH (OF1.5) (xid=0x7): zone={what.zone} '{original},ct_nw_proto={what.protocol}' '{reply}'"
    )
