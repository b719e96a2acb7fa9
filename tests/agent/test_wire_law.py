"""Property: whatever step of the adoption fails, the Node is reachable at its addresses.

The kernel, Open vSwitch, the disk and the packets are real. Faults: the kernel refuses a change, or everything from a
change on; the process is killed at a change; the disk is full; ovsdb-server goes away before the adoption or in the
middle. In between, network managers and people do what they do.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from wires import Fault, world

from switches import requires_ovs

pytestmark = requires_ovs

# What others do on the Node before a pass.
EVENTS = (
    "",
    "addr add 192.0.2.99/24 dev eth0",
    "addr replace 192.0.2.5/24 brd + dev eth0 valid_lft 900 preferred_lft 900",
    "addr add 198.18.0.9/24 dev eth0 valid_lft 900 preferred_lft 900",
    "route add 203.0.113.0/24 nexthop via 198.51.100.1 dev gw-other onlink nexthop via 192.0.2.1 dev eth0 onlink",
    "-6 route add 2001:db8:9::/48 via fe80::1 dev eth0",
    "addr del 192.0.2.77/24 dev br-int",
    "route del default dev br-int",
)
# ovs-vswitchd takes seconds to come back to its database: such faults are among the examples only.
QUICK = [fault for fault in Fault if fault not in {Fault.DATABASE_AWAY, Fault.DATABASE_GOES}]
passes = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(QUICK), st.integers(1, 24)), min_size=1, max_size=4
)


def test_the_node_answers_at_its_addresses_whatever_fails(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        opened = world(tmp_path)
        tried_world = runner.run(opened.__aenter__())

        @settings(
            max_examples=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate),
        )
        @given(passes)
        @example([("", Fault.NONE, 0), (EVENTS[4], Fault.NONE, 0), (EVENTS[1], Fault.DISK_FULL, 0)])
        @example([("", Fault.DISK_FULL, 0), ("", Fault.DATABASE_GOES, 0)])
        @example([("", Fault.NONE, 0), (EVENTS[1], Fault.ALL_REFUSED, 1), (EVENTS[2], Fault.DATABASE_AWAY, 0)])
        @example([(EVENTS[4], Fault.KILLED, 5), (EVENTS[5], Fault.REFUSED, 9)])
        def law(tried: list[tuple[str, Fault, int]]) -> None:
            runner.run(tried_world.attempt(tried))

        try:
            law()
        finally:
            runner.run(opened.__aexit__(None, None, None))
