"""Which prefixes of addresses the switch tracks in the tables of policy peers. No I/O.

By prefixes, one datapath flow serves all addresses that the policies in use do not tell apart. Open vSwitch before 3.5
tracks those of IPv6 only where it is told to: otherwise each IPv6 client of a Pod with policies takes a datapath flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from windlass.pipeline.layout import EGRESS_PEER, INGRESS_PEER
from windlass.switch.operations import Operation, Reference, insert, new_ref, put_reference
from windlass.switch.rows import BridgeRow, FlowTableRow, View

PREFIXES: Final[Mapping[int, frozenset[str]]] = {
    EGRESS_PEER.number: frozenset({"ip_dst", "ipv6_dst"}),
    INGRESS_PEER.number: frozenset({"ip_src", "ipv6_src"}),
}


def table_difference(view: View, bridge: BridgeRow | None, target: Reference) -> Iterator[Operation]:
    """`target`: the bridge; another program's settings of other tables stay."""
    for number, prefixes in PREFIXES.items():
        row = view.flow_tables.get(bridge.flow_tables.get(number, "")) if bridge else None
        if row is None or row.prefixes != prefixes:
            name = f"table_{number}"
            yield insert(FlowTableRow, name, {"prefixes": prefixes})
            yield put_reference(BridgeRow, target, "flow_tables", number, new_ref(name))
