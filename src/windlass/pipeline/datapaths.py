"""What each datapath supports, and a check that a Program needs no more.

One pipeline serves all datapaths. The Windows datapath accepts every flow and silently ignores what it does not
support, so such a flow must be found here, before it is installed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem
from windlass.openflow.actions import (
    Action,
    Actions,
    Clone,
    Ct,
    Goto,
    Move,
    Output,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    ICMP_CODE,
    ICMP_TYPE,
    IN_PORT,
    IPV6_DST,
    IPV6_SRC,
    LOCAL_PORT,
    PKT_MARK,
    SCTP,
    SCTP_DST,
    SCTP_SRC,
    TCP,
    TCP_FLAGS,
    TUNNEL_DESTINATION,
    UDP,
    UDP_DST,
    Field,
)
from windlass.openflow.flows import Flow, Group, Translations
from windlass.pipeline import tracked_paths


@dataclass(frozen=True, slots=True)
class Datapath:
    name: str
    families: tuple[Family, ...]
    transports: tuple[int, ...]  # protocols that connection tracking knows, in addition to ICMP echoes
    portless: tuple[int, ...]  # protocols that it knows by addresses alone: see `sctp`
    others: bool  # whether it tracks protocols without ports, by their addresses
    passes_untranslated: bool  # if no SNAT port is free, ct reports the packet as new and does not translate it
    reassembles: bool  # ct passes fragments on as one packet; otherwise flows see fragments, without ports
    icmp_errors: bool  # whether ct finds the connection that an ICMP error is about
    # When ct translates an outer address of an ICMPv6 error, it also adjusts what it takes for the checksum of TCP or
    # UDP: bytes of the quoted source address (TCP) or of the MTU (UDP). If the address stays the same, nothing changes.
    damages_icmpv6_errors: bool
    # Whether ct must commit to translate an ICMP error in the direction of its connection's first packet: the kernel
    # treats it as the first packet of an expected connection.
    translates_related_by_commit: bool
    unmatched: frozenset[Field]  # accepted in a match, but ignored
    unwritten: frozenset[Field]  # accepted in an action, but not applied
    routes_replies: bool  # the host can send a reply back by the gateway on which the request came
    recirculations: int  # how often a packet may pass ct or a select group; with more it is dropped
    meters: bool  # whether meters can limit the packets for the agent
    timeouts: bool  # whether zones have timeouts of their own. Windows claims it, and ignores them
    clones: bool  # whether actions on a copy of the packet leave the packet as it was
    tracks_again: bool  # whether ct may see a reply again in its zone, and commit again. If not, see `tracked_paths`
    flushes: bool  # whether one connection can be flushed, without the translations of all others in its zone
    keeps_connections: bool  # whether connections outlive a restart of ovs-vswitchd
    encapsulates_in_port: bool  # whether a tunnelled packet leaves by itself; if not, flows must send it to the wire


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
        translates_related_by_commit=True,
        unmatched=frozenset(),
        unwritten=frozenset(),
        routes_replies=True,
        recirculations=12,
        meters=True,
        timeouts=True,
        clones=True,
        tracks_again=True,
        flushes=True,
        keeps_connections=True,
        encapsulates_in_port=True,
    ),
    # From the code of the last Open vSwitch with Windows support (3.7.1); not confirmed on a Windows machine.
    OperatingSystem.WINDOWS: Datapath(
        name="Windows",
        families=(Family.IPV4,),  # after ct, IPv6 packets take the slow path, and IPv6 addresses cannot be written
        transports=(TCP, UDP),  # ct drops other protocols
        portless=(),
        others=False,
        passes_untranslated=False,
        reassembles=True,
        icmp_errors=False,  # ct reports them as invalid
        damages_icmpv6_errors=False,
        translates_related_by_commit=False,
        unmatched=frozenset({TCP_FLAGS, PKT_MARK}),
        unwritten=frozenset({PKT_MARK, IPV6_SRC, IPV6_DST, SCTP_SRC, SCTP_DST, ICMP_TYPE, ICMP_CODE}),
        routes_replies=False,
        recirculations=6,
        meters=False,  # too recent to rely on
        timeouts=False,
        clones=False,
        tracks_again=False,
        flushes=False,
        keeps_connections=True,
        encapsulates_in_port=False,
    ),
}

# For Open vSwitch before 3.2. Later versions know the ports of SCTP; the flows for older ones do no harm there.
USERSPACE = replace(
    DATAPATHS[OperatingSystem.LINUX],
    name="Linux userspace",
    transports=(TCP, UDP),
    portless=(SCTP,),
    passes_untranslated=True,
    reassembles=False,
    damages_icmpv6_errors=True,
    translates_related_by_commit=False,
    keeps_connections=False,
)


def datapath_of(node: LocalNode) -> Datapath:
    return USERSPACE if node.userspace and node.os is OperatingSystem.LINUX else DATAPATHS[node.os]


def violations(datapath: Datapath, flows: Iterable[Flow], groups: Iterable[Group] = ()) -> list[str]:
    """Sentences about what the flows and groups need, but this datapath does not support."""
    return list(dict.fromkeys(chain.from_iterable(checks(datapath, flows, groups))))


def checks(datapath: Datapath, flows: Iterable[Flow], groups: Iterable[Group]) -> Iterator[Collection[str]]:
    """The same by parts, each of which takes a few milliseconds; parts may repeat sentences of others."""
    flows, groups = tuple(flows), tuple(groups)
    yield tuple(_violations(datapath, flows, groups))
    if not datapath.tracks_again:
        for mistakes in tracked_paths.mistakes(flows, groups):
            yield [f"{datapath.name} datapath, {mistake}" for mistake in mistakes]


def _violations(datapath: Datapath, flows: Sequence[Flow], groups: Sequence[Group]) -> Iterator[str]:
    buckets = {group.identity: _distinct_actions(group) for group in groups}
    for flow in flows:
        where = f"{datapath.name} datapath, table {flow.table} priority {flow.priority} ({flow.why})"
        for term in flow.match:
            if term.field in datapath.unmatched:
                yield f"{where}: it ignores a match on {term.field.name}"
        yield from _unsupported(datapath, flow.actions, where)
    for identity, of in buckets.items():
        for actions in of:
            yield from _unsupported(datapath, actions, f"{datapath.name} datapath, group {identity}")
    longest = longest_path(flows, buckets)
    if longest > datapath.recirculations:
        yield (
            f"{datapath.name} datapath: a packet could recirculate {longest} times, "
            f"but the maximum is {datapath.recirculations}"
        )
    if not datapath.encapsulates_in_port and _uses_tunnels(flows) and not _sends_tunnelled_packets(flows):
        yield f"{datapath.name} datapath: no flows carry tunnelled packets between host and wire before any ct"


def _distinct_actions(group: Group) -> list[Actions]:
    """The actions of its buckets. If they differ in addresses only, one of them is enough."""
    if isinstance(group.buckets, Translations):
        return [(group.buckets.does,)]
    return [bucket.actions for bucket in group.buckets]


def _unsupported(datapath: Datapath, actions: Iterable[Action], where: str) -> Iterator[str]:
    for field in _written(actions):
        if field in datapath.unwritten:
            yield f"{where}: it does not apply a write to {field.name}"
    for action in actions:
        if isinstance(action, Ct) and action.zone == 0:
            yield f"{where}: zone 0 belongs to the host"
        if isinstance(action, ToController) and action.meter and not datapath.meters:
            yield f"{where}: it has no meters"
        if isinstance(action, Clone) and not datapath.clones:
            yield f"{where}: it has no clone"
        if isinstance(action, Ct) and _has_choice(action):
            yield f"{where}: destination translation needs one address and one port"
        if isinstance(action, Ct) and action.nat and action.nat.source and action.nat.source.is_unspecified:
            yield f"{where}: source translation needs an address"


def _has_choice(action: Ct) -> bool:
    nat = action.nat
    return nat is not None and nat.to is not None and (nat.ports is None or nat.ports[0] != nat.ports[1])


def _uses_tunnels(flows: Iterable[Flow]) -> bool:
    return any(field in TUNNEL_DESTINATION.fields for flow in flows for field in _written(flow.actions))


def _sends_tunnelled_packets(flows: Collection[Flow]) -> bool:
    """The host's bridge interface has the tunnel's address: there the datapath encapsulates and unpacks."""
    first = min(flow.table for flow in flows)
    tracking = min((flow.table for flow in flows if any(isinstance(one, Ct) for one in flow.actions)), default=256)
    return any(
        flow.table == first and flow.match == (IN_PORT(LOCAL_PORT),) and isinstance(flow.actions[0], Output)
        for flow in flows
        if flow.actions
    ) and any(
        flow.table < tracking and flow.actions == (Output(LOCAL_PORT),) and UDP_DST in {one.field for one in flow.match}
        for flow in flows
    )


def longest_path(flows: Iterable[Flow], buckets: dict[int, list[Actions]]) -> int:
    """The most recirculations of any packet.

    Tables lead only forward, so one pass from the last to the first is enough. Only a bucket may lead back to the table
    that uses its group (session affinity), and there to a flow without a group.
    """
    by_table: dict[int, tuple[list[Actions], list[Actions]]] = {}  # without and with a group
    for flow in flows:
        has_group = any(isinstance(action, ToGroup) for action in flow.actions)
        by_table.setdefault(flow.table, ([], []))[has_group].append(flow.actions)
    longest: dict[int, int] = {}  # by table

    def cost(actions: Actions) -> int:
        most = 0
        for action in actions:
            match action:
                case Goto(table) | Resubmit(table):
                    most = max(most, longest.get(table, 0))
                case Ct(table=int(table)):
                    most = max(most, 1 + longest.get(table, 0))
                case ToGroup(group):
                    most = max(most, 1 + max(map(cost, buckets.get(group, ())), default=0))
        return most

    for table in sorted(by_table, reverse=True):
        simple, grouped = by_table[table]
        longest[table] = max(map(cost, simple), default=0)
        longest[table] = max(longest[table], max(map(cost, grouped), default=0))
    return max(longest.values(), default=0)


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
