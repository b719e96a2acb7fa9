"""Which kinds of packets may reach ct, by matches on their protocol alone: more than really do, never fewer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby

from windlass.openflow.actions import Action, Clone, Ct, Goto, Resubmit, ToGroup
from windlass.openflow.fields import CT_STATE, ETH_TYPE, ICMP, ICMP_TYPE, IP_PROTO, SCTP, TCP, UDP, Field
from windlass.openflow.flows import Flow, Group

Kind = Mapping[Field, int]
_IPV4, _ARP, _GRE, _IGMP = 0x0800, 0x0806, 47, 2
_TRACKED = 0x20  # of ct_state
KINDS: Mapping[str, Kind] = {
    "TCP": {ETH_TYPE: _IPV4, IP_PROTO: TCP},
    "UDP": {ETH_TYPE: _IPV4, IP_PROTO: UDP},
    "echo request": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 8},
    "echo reply": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 0},
    "ICMP error": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 3},
    "other ICMP": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 13},
    "SCTP": {ETH_TYPE: _IPV4, IP_PROTO: SCTP},
    "GRE": {ETH_TYPE: _IPV4, IP_PROTO: _GRE},
    "IGMP": {ETH_TYPE: _IPV4, IP_PROTO: _IGMP},
    "ARP": {ETH_TYPE: _ARP},
}


def tracked(flows: Iterable[Flow], groups: Iterable[Group]) -> Iterator[tuple[str, Flow]]:
    """Each kind, with a flow that sends such packets to ct."""
    tables = {
        number: sorted(of, key=lambda flow: -flow.priority)
        for number, of in groupby(sorted(flows, key=lambda flow: flow.table), key=lambda flow: flow.table)
    }
    buckets = {group.identity: [action for bucket in group.buckets for action in bucket.actions] for group in groups}
    for name, kind in KINDS.items():
        for flow in _met(kind, tables, buckets):
            if any(isinstance(action, Ct | Clone) for action in _all_actions(flow.actions, buckets)):
                yield name, flow


def _met(kind: Kind, tables: Mapping[int, list[Flow]], buckets: Mapping[int, list[Action]]) -> Iterator[Flow]:
    """The flows that such a packet may match before its first ct."""
    waiting, seen = [min(tables)], {min(tables)}
    while waiting:
        for flow in tables.get(waiting.pop(), ()):
            if not _may_match(kind, flow):
                continue
            yield flow
            for table in _next_tables(_all_actions(flow.actions, buckets)):
                if table not in seen:
                    seen.add(table)
                    waiting.append(table)
            if all(term.field in kind for term in flow.match):
                break  # no packet of this kind gets to a flow with a lower priority


def _may_match(kind: Kind, flow: Flow) -> bool:
    about = (ETH_TYPE, IP_PROTO, ICMP_TYPE)
    if any(term.field is CT_STATE and term.value & _TRACKED for term in flow.match):
        return False
    return all(term.field not in about or kind.get(term.field) == term.value for term in flow.match)


def _all_actions(actions: Collection[Action], buckets: Mapping[int, list[Action]]) -> list[Action]:
    return [*actions, *(a for action in actions if isinstance(action, ToGroup) for a in buckets.get(action.group, ()))]


def _next_tables(actions: Iterable[Action]) -> Iterator[int]:
    for action in actions:
        match action:
            case Goto(table) | Resubmit(table):
                yield table
