"""Explains what may reach a Pod and what it may reach, and which traffic a change of policies adds or removes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from itertools import product
from typing import Literal

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.model.policies import Direction
from windlass.model.port_sets import (
    ALL_PORTS,
    NO_PORTS,
    PortSet,
    contains,
    difference,
    in_words,
    intersection,
)
from windlass.policy.connectivity import (
    Connectivity,
    End,
    EndKind,
    Profile,
    Relation,
    Verdict,
    allowed_ports,
    relation,
    relations,
)
from windlass.policy.protocol_ports import ProtocolPorts, protocol_ports

OWN_NODE, ITSELF, REPLICAS = "its own Node", "itself, through a Service", "its other replicas"
NO_POLICY = "no policy decides: allowed by default"

EndName = tuple[str, str]  # the kind of an end, and its name
_EXCEPT_OWN_NODE: EndName = EndKind.NODE.value, f"except {OWN_NODE}"
_Place = tuple[int, IPAddress | None]  # the IP version, and the address if it matters which one it is
_Member = tuple[EndName, _Place]


class PeerGroup(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Ends that are treated alike."""

    pods: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    except_own_node: bool = False  # traffic between a Pod and its own Node, if that is one of the nodes, is not meant


class TrafficVerdict(Struct, frozen=True):
    traffic: str  # for people
    ports: tuple[ProtocolPorts, ...]  # the same
    verdict: Literal["Allow", "Deny"]
    rules: tuple[str, ...]


class PeerVerdicts(Struct, frozen=True):
    peers: PeerGroup
    verdicts: tuple[TrafficVerdict, ...]


class DirectionExplanation(Struct, frozen=True):
    policies: tuple[str, ...]  # that select the Pod for this direction
    peers: tuple[PeerVerdicts, ...]


class AskedPeers(Struct, frozen=True):
    """The ends that a question is about."""

    ends: tuple[End, ...]
    are_addresses: bool = False  # the question gives an address, not a name


class PodExplanation(Struct, frozen=True):
    pod: str
    node: str
    addresses: tuple[str, ...]  # empty if they are not known
    ingress: DirectionExplanation
    egress: DirectionExplanation


class ConnectivityChange(Struct, frozen=True, rename="camel"):
    """Traffic from these sources to these destinations that passed before and does not now, or the reverse."""

    change: Literal["Added", "Removed"]
    source: PeerGroup
    destination: PeerGroup
    traffic: str  # for people
    ports: tuple[ProtocolPorts, ...]  # the same
    rules_before: tuple[str, ...]
    rules_now: tuple[str, ...]


class ConnectivityDifference(Struct, frozen=True, rename="camel"):
    added_pods: tuple[str, ...]
    removed_pods: tuple[str, ...]
    changes: tuple[ConnectivityChange, ...]

    def __bool__(self) -> bool:
        return bool(self.added_pods or self.removed_pods or self.changes)


# --- one Pod ----------------------------------------------------------------------------------------------------------


def explain(connectivity: Connectivity, pod: str, peers: AskedPeers | None = None) -> PodExplanation:
    """With `peers`: only the traffic with these."""
    versions = connectivity.versions | {end.address.version for end in (peers.ends if peers else ())}
    own = [end for end in connectivity.machines(versions) if (end.kind, end.name) == (EndKind.POD, pod)]
    return PodExplanation(
        pod,
        own[0].node,
        tuple(str(end.address) for end in own if end.has_known_address),
        *(
            DirectionExplanation(
                connectivity.policies_of(pod, direction), tuple(_peer_verdicts(connectivity, own, peers, direction))
            )
            for direction in (Direction.INGRESS, Direction.EGRESS)
        ),
    )


def _peer_verdicts(
    connectivity: Connectivity, own: list[End], peers: AskedPeers | None, direction: Direction
) -> Iterator[PeerVerdicts]:
    alike: dict[tuple[Verdict, ...], list[_Member]] = {}
    whole: dict[EndName, set[_Place]] = {}
    for other, end in product(connectivity.ends if peers is None else peers.ends, own):
        if end.address.version == other.address.version:
            pair = (other, end) if direction is Direction.INGRESS else (end, other)
            for kind in relations(*pair):
                verdicts = connectivity.between(*pair, kind)
                if kind is Relation.ITSELF and peers is None and all(verdict.allowed for verdict in verdicts):
                    continue  # expected, so it is not listed
                label, place = _label(other, kind), (other.address.version, other.address)
                alike.setdefault(verdicts, []).append((label, place))
                whole.setdefault(label, set()).add(place)
    names_addresses = peers is not None and peers.are_addresses
    rows = [
        PeerVerdicts(_peers(members, {} if names_addresses else whole), _in_words(found))
        for found, members in alike.items()
    ]
    yield from sorted(rows, key=_order)


def _order(row: PeerVerdicts) -> tuple[bool, bool, bool, tuple[object, ...]]:
    """Allowed traffic first; then Pods before Nodes before networks."""
    denied = all(one.verdict == "Deny" for one in row.verdicts)
    return denied, not row.peers.pods, not row.peers.nodes, _order_of_peers(row.peers)


def _in_words(verdicts: Iterable[Verdict]) -> tuple[TrafficVerdict, ...]:
    """The part with protocols without ports comes last, as everything else."""
    ordered = sorted(verdicts, key=lambda verdict: contains(verdict.ports, None, None))
    return tuple(
        TrafficVerdict(
            _rest_in_words(one.ports) if len(ordered) > 1 and one is ordered[-1] else in_words(one.ports),
            protocol_ports(one.ports),
            "Allow" if one.allowed else "Deny",
            _rules(one),
        )
        for one in ordered
    )


def _rest_in_words(ports: PortSet) -> str:
    return "everything else" if contains(ports, None, None) else in_words(ports)


def _rules(verdict: Verdict) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*verdict.egress, *verdict.ingress))) or (NO_POLICY,)


# --- two states -------------------------------------------------------------------------------------------------------


def compare(old: Connectivity, new: Connectivity) -> ConnectivityDifference:
    pods_before, pods_now = ({end.name for end in one.ends if end.kind is EndKind.POD} for one in (old, new))
    return ConnectivityDifference(
        tuple(sorted(pods_now - pods_before)),
        tuple(sorted(pods_before - pods_now)),
        tuple(sorted(_merged(_Comparison(old, new)), key=_order_of_change)),
    )


def _order_of_change(one: ConnectivityChange) -> tuple[str, tuple[object, ...], tuple[object, ...]]:
    return one.change, _order_of_peers(one.source), _order_of_peers(one.destination)


_Change = tuple[str, PortSet, tuple[str, ...], tuple[str, ...]]  # what, traffic, rules before, rules now
_Joint = tuple[Profile, Profile]  # before and now


class _Comparison:
    """The ends that both states have, and what differs between them."""

    def __init__(self, old: Connectivity, new: Connectivity) -> None:
        self._old, self._new = old, new
        self.groups: dict[_Joint, list[End]] = {}
        for before, now in self._ends():
            self.groups.setdefault((old.profile(before), new.profile(now)), []).append(now)
        self._split = _in_several(self.groups.values())
        self.whole: dict[EndName, set[_Place]] = {}
        for members in self.groups.values():
            for end in members:
                for kind in Relation:
                    self.whole.setdefault(_label(end, kind), set()).add(self._place(end))

    def _ends(self) -> Iterator[tuple[End, End]]:
        versions = self._old.versions | self._new.versions
        prefixes = self._old.prefixes(versions) | self._new.prefixes(versions)
        before, now = (
            {
                (end.kind, end.name, end.address.version, number): end
                for number, end in _numbered((*one.machines(versions), *one.networks(prefixes)))
            }
            for one in (self._old, self._new)
        )
        for key in before.keys() & now.keys():
            yield before[key], now[key]

    def changes(self) -> Iterator[tuple[frozenset[_Member], frozenset[_Member], _Change]]:
        for (source, sources), (destination, destinations) in product(self.groups.items(), self.groups.items()):
            if source[0].version != destination[0].version:
                continue
            for kind, pairs in _by_relation(sources, destinations).items():
                for change in self._between(source, destination, kind):
                    yield self._members(pairs, 0, kind), self._members(pairs, 1, kind), change

    def _members(self, pairs: list[tuple[End, End]], side: int, kind: Relation) -> frozenset[_Member]:
        """The related end is named by its relation: the Node of a Pod, or else the destination."""
        is_related = side == (0 if kind is Relation.FROM_OWN_NODE else 1)
        ends = (pair[side] for pair in pairs)
        members = {(_label(end, kind if is_related else Relation.APART), self._place(end)) for end in ends}
        if kind is Relation.APART and _lacks_own_nodes(pairs, side):
            members |= {(_EXCEPT_OWN_NODE, place) for _, place in members}
        return frozenset(members)

    def _place(self, end: End) -> _Place:
        version = end.address.version
        return version, end.address if (end.kind, end.name, version) in self._split else None

    def _between(self, source: _Joint, destination: _Joint, kind: Relation) -> Iterator[_Change]:
        before = self._old.judge(source[0], destination[0], kind)
        now = self._new.judge(source[1], destination[1], kind)
        if before == now:
            return
        was, is_now = allowed_ports(before), allowed_ports(now)
        for what, ports in (("Added", difference(is_now, was)), ("Removed", difference(was, is_now))):
            if ports != NO_PORTS:
                yield what, ports, _deciding(before, ports), _deciding(now, ports)


def _numbered(ends: Iterable[End]) -> Iterator[tuple[int, End]]:
    """Counts the ends of one name and IP version: a Node may have several addresses."""
    counts: dict[tuple[EndKind, str, int], int] = {}
    for end in ends:
        key = end.kind, end.name, end.address.version
        counts[key] = counts.get(key, -1) + 1
        yield counts[key], end


def _in_several(groups: Iterable[Iterable[End]]) -> set[tuple[EndKind, str, int]]:
    """The names and IP versions with addresses in several groups: Nodes whose addresses are treated differently."""
    counted = Counter(key for ends in groups for key in {(end.kind, end.name, end.address.version) for end in ends})
    return {key for key, count in counted.items() if count > 1}


def _by_relation(sources: list[End], destinations: list[End]) -> dict[Relation, list[tuple[End, End]]]:
    """The pairs by their relation. Only a Pod with itself and with its own Node are related, so few pairs are made."""
    kinds = sources[0].kind, destinations[0].kind
    if EndKind.POD not in kinds:
        return {}
    if EndKind.NETWORK in kinds or (kinds == (EndKind.POD, EndKind.POD) and sources is not destinations):
        return {
            Relation.APART: [(sources[0], one) for one in destinations] + [(one, destinations[0]) for one in sources]
        }
    found: dict[Relation, list[tuple[End, End]]] = {}
    if sources is destinations:
        found[Relation.ITSELF] = [(one, one) for one in sources]
        if replicas := [(one, one) for one in sources if one.is_workload]:
            found[Relation.REPLICA] = replicas
        if len({one.name for one in sources}) > 1:
            found[Relation.APART] = found[Relation.ITSELF]
        return found
    for pair in product(sources, destinations):
        found.setdefault(relation(*pair), []).append(pair)
    return found


def _lacks_own_nodes(pairs: list[tuple[End, End]], side: int) -> bool:
    """Whether one side consists of Nodes, and their own Pods on the other side are not among the pairs."""
    sources, destinations = map(set, zip(*pairs, strict=True))
    return pairs[0][side].kind is EndKind.NODE and len(pairs) < len(sources) * len(destinations)


def _deciding(verdicts: Iterable[Verdict], ports: PortSet) -> tuple[str, ...]:
    concerned = (one for one in verdicts if intersection(one.ports, ports))
    return tuple(dict.fromkeys(rule for one in concerned for rule in _rules(one)))


def _merged(comparison: _Comparison) -> Iterator[ConnectivityChange]:
    """First all destinations of the same sources, then all sources of the same destinations, then both IP versions."""
    by_source: dict[tuple[frozenset[_Member], _Change], frozenset[_Member]] = {}
    for source, destination, change in comparison.changes():
        by_source[source, change] = by_source.get((source, change), frozenset()) | destination
    by_destination: dict[tuple[frozenset[_Member], _Change], frozenset[_Member]] = {}
    for (source, change), destination in by_source.items():
        by_destination[destination, change] = by_destination.get((destination, change), frozenset()) | source
    rows: dict[tuple[_Change, frozenset[EndName], frozenset[EndName]], tuple[set[_Member], set[_Member]]] = {}
    for (destination, change), source in by_destination.items():
        sources, destinations = rows.setdefault(
            (change, _machine_names(source), _machine_names(destination)), (set(), set())
        )
        sources |= source
        destinations |= destination
    for ((what, ports, before, now), _, _), (sources, destinations) in rows.items():
        yield ConnectivityChange(
            "Added" if what == "Added" else "Removed",
            _peers(sources, comparison.whole),
            _peers(destinations, comparison.whole),
            in_words(ports) if ports == ALL_PORTS or not contains(ports, None, None) else _except_in_words(ports),
            protocol_ports(ports),
            before,
            now,
        )


def _machine_names(members: Iterable[_Member]) -> frozenset[EndName]:
    """The names of Pods and Nodes. Networks have one IP version each."""
    return frozenset(label for label, _ in members if label[0] != EndKind.NETWORK.value)


def _except_in_words(ports: PortSet) -> str:
    return f"everything except {in_words(difference(ALL_PORTS, ports))}"


# --- names ------------------------------------------------------------------------------------------------------------


def _label(end: End, kind: Relation) -> EndName:
    match kind:
        case Relation.ITSELF:
            return end.kind.value, ITSELF
        case Relation.REPLICA:
            return end.kind.value, REPLICAS
        case Relation.TO_OWN_NODE | Relation.FROM_OWN_NODE if end.kind is EndKind.NODE:
            return end.kind.value, OWN_NODE
    return end.kind.value, end.name


def _peers(members: Iterable[_Member], whole: Mapping[EndName, set[_Place]]) -> PeerGroup:
    """The name of an end gets its IP version or its address if not all of its addresses are among the members."""
    meant: dict[EndName, set[_Place]] = {}
    for label, place in members:
        meant.setdefault(label, set()).add(place)
    is_except = meant.pop(_EXCEPT_OWN_NODE, None) is not None and (EndKind.NODE.value, OWN_NODE) not in meant
    names: dict[str, list[str]] = {}
    for label, found in meant.items():
        kind, name = label
        suffixes = [""] if kind == EndKind.NETWORK.value else _suffixes(found, whole.get(label, set()))
        names.setdefault(kind, []).extend(name + suffix for suffix in suffixes)
    pods, nodes = (tuple(sorted(names.get(kind.value, ()))) for kind in (EndKind.POD, EndKind.NODE))
    networks = tuple(sorted(names.get(EndKind.NETWORK.value, ()), key=_order_of_network))
    return PeerGroup(pods, nodes, networks, is_except)


def _order_of_peers(peers: PeerGroup) -> tuple[object, ...]:
    return peers.pods, peers.nodes, [*map(_order_of_network, peers.networks)], peers.except_own_node


def _order_of_network(name: str) -> tuple[int, int, int]:
    network = ip_network(name)
    return network.version, int(network.network_address), network.prefixlen


def _suffixes(found: set[_Place], whole: set[_Place]) -> list[str]:
    if found == whole:
        return [""]
    versions = {version for version, _ in whole}
    for version in versions:
        if found == {place for place in whole if place[0] == version}:
            return [f" (IPv{version})"]
    by_version = {version: f" (IPv{version})" if len(versions) > 1 else "" for version, _ in found}
    return [f" ({address})" if address else by_version[version] for version, address in found]
