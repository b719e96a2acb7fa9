"""What each datapath can carry out, declared; and the check that a Program stays within it.

One pipeline serves both. The Windows datapath accepts every flow and silently ignores what it cannot do, so a flow
that it would misread must be found here, before it is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem
from windlass.openflow.actions import (
    Action,
    Actions,
    Clone,
    Ct,
    Goto,
    Move,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    IPV6_DST,
    IPV6_SRC,
    PKT_MARK,
    SCTP,
    SCTP_DST,
    SCTP_SRC,
    TCP,
    TCP_FLAGS,
    UDP,
    Field,
)
from windlass.openflow.flows import Flow, Group, Translations


@dataclass(frozen=True, slots=True)
class Datapath:
    name: str
    families: tuple[Family, ...]
    transports: tuple[int, ...]  # what connection tracking knows, beside ICMP echoes
    portless: tuple[int, ...]  # what it knows by addresses alone: `sctp` tells those connections apart
    others: bool  # whether it tracks protocols that have no ports, by their addresses
    passes_untranslated: bool  # where no port is free, ct reports the packet as new and leaves it untranslated
    reassembles: bool  # what comes in fragments leaves connection tracking as one; else flows meet them, without ports
    icmp_errors: bool  # whether it also knows the connection that an ICMP error is about
    # When it translates an outer address of an ICMPv6 error, it also adjusts what it takes for the checksum of TCP or
    # UDP: bytes of the quoted source address (TCP) or of the MTU (UDP). An address that stays the same adjusts nothing.
    damages_icmpv6_errors: bool
    unmatched: frozenset[Field]  # accepted in a match, and ignored
    unwritten: frozenset[Field]  # accepted in an action, and not applied
    routes_answers: bool  # its host can route an answer by the way that the question came, wherever the client is
    recirculations: int  # how often a packet may pass ct or a select group; more and it is lost
    meters: bool  # whether it limits the packets that it hands to the agent


DATAPATHS = {
    OperatingSystem.LINUX: Datapath(
        name="Linux",
        families=(Family.IPV4, Family.IPV6),
        transports=(TCP, UDP, SCTP),
        portless=(),
        others=True,
        passes_untranslated=False,  # the kernel drops it
        reassembles=True,
        icmp_errors=True,
        damages_icmpv6_errors=False,
        unmatched=frozenset(),
        unwritten=frozenset(),
        routes_answers=True,
        recirculations=12,
        meters=True,
    ),
    # Read in the code of the last Open vSwitch with Windows support (3.7.1); no Windows machine confirmed it.
    OperatingSystem.WINDOWS: Datapath(
        name="Windows",
        families=(Family.IPV4,),  # after ct every IPv6 packet takes the slow path, and IPv6 cannot be rewritten
        transports=(TCP, UDP),  # ct drops what it does not know
        portless=(),
        others=False,
        passes_untranslated=False,
        reassembles=True,
        icmp_errors=False,  # they come out of ct as invalid
        damages_icmpv6_errors=False,
        unmatched=frozenset({TCP_FLAGS, PKT_MARK}),
        unwritten=frozenset({PKT_MARK, IPV6_SRC, IPV6_DST, SCTP_SRC, SCTP_DST}),
        routes_answers=False,
        recirculations=6,
        meters=False,  # recent, and nobody is known to rely on them
    ),
}

# Open vSwitch before 3.2; the later ones know the ports of SCTP, and what is done without them does no harm there.
USERSPACE = replace(
    DATAPATHS[OperatingSystem.LINUX],
    name="Linux userspace",
    transports=(TCP, UDP),
    portless=(SCTP,),
    passes_untranslated=True,
    reassembles=False,
    damages_icmpv6_errors=True,
)


def datapath_of(node: LocalNode) -> Datapath:
    return USERSPACE if node.userspace and node.os is OperatingSystem.LINUX else DATAPATHS[node.os]


def violations(datapath: Datapath, flows: Iterable[Flow], groups: Iterable[Group] = ()) -> Iterator[str]:
    """Sentences about what this datapath could not carry out of the flows and groups."""
    flows = tuple(flows)
    buckets = {group.identity: _different(group) for group in groups}
    for flow in flows:
        where = f"{datapath.name} datapath, table {flow.table} priority {flow.priority} ({flow.why})"
        for term in flow.match:
            if term.field in datapath.unmatched:
                yield f"{where}: it ignores a match on {term.field.name}"
        yield from _undone(datapath, flow.actions, where)
    for identity, of in buckets.items():
        for actions in of:
            yield from _undone(datapath, actions, f"{datapath.name} datapath, group {identity}")
    longest = longest_way(flows, buckets)
    if longest > datapath.recirculations:
        yield (
            f"{datapath.name} datapath: a packet could recirculate {longest} times, "
            f"and {datapath.recirculations} is the most it can"
        )


def _different(group: Group) -> list[Actions]:
    """What its buckets do, each thing once: where they translate to makes no difference here."""
    if isinstance(group.buckets, Translations):
        return [(group.buckets.does,)]
    return [bucket.actions for bucket in group.buckets]


def _undone(datapath: Datapath, actions: Iterable[Action], where: str) -> Iterator[str]:
    for field in _written(actions):
        if field in datapath.unwritten:
            yield f"{where}: it does not apply a write to {field.name}"
    for action in actions:
        if isinstance(action, Ct) and action.zone == 0:
            yield f"{where}: zone 0 belongs to the host"
        if isinstance(action, ToController) and action.meter and not datapath.meters:
            yield f"{where}: it has no meters"


def longest_way(flows: Iterable[Flow], buckets: dict[int, list[Actions]]) -> int:
    """The most recirculations any packet can meet.

    Tables lead only forward, so one pass from the last is enough; but a bucket may lead back to the table that asked
    its group (session affinity), and there to a flow that asks none.
    """
    by_table: dict[int, tuple[list[Actions], list[Actions]]] = {}  # of flows that ask no group, and of those that do
    for flow in flows:
        asks = any(isinstance(action, ToGroup) for action in flow.actions)
        by_table.setdefault(flow.table, ([], []))[asks].append(flow.actions)
    ways: dict[int, int] = {}

    def cost(actions: Actions) -> int:
        most = 0
        for action in actions:
            match action:
                case Goto(table) | Resubmit(table):
                    most = max(most, ways.get(table, 0))
                case Ct(table=int(table)):
                    most = max(most, 1 + ways.get(table, 0))
                case ToGroup(group):
                    most = max(most, 1 + max(map(cost, buckets.get(group, ())), default=0))
        return most

    for table in sorted(by_table, reverse=True):
        simple, asking = by_table[table]
        ways[table] = max(map(cost, simple), default=0)
        ways[table] = max(ways[table], max(map(cost, asking), default=0))
    return max(ways.values(), default=0)


def _written(actions: Iterable[Action]) -> Iterator[Field]:
    for action in actions:
        match action:
            case Set(term):
                yield term.field
            case Move(to=bits):
                yield bits.field
            case Ct(sets=sets):
                yield from _written(sets)
            case Clone(copied):
                yield from _written(copied)
