"""Explains what may reach a Pod and what it may reach, and which traffic a change of policies adds or removes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Literal

from msgspec import Struct

from windlass.model.policies import Direction
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet, contains, difference, in_words, intersection
from windlass.policy.connectivity import Connectivity, End, EndKind, Profile, Relation, Verdict, allowed_ports, relation

OWN_NODE, ITSELF = "its own Node", "itself, through a Service"
NO_POLICY = "no policy decides: allowed by default"

EndName = tuple[str, str]  # the kind of an end, and its name


class PeerGroup(Struct, frozen=True, omit_defaults=True, order=True):
    """Ends that are treated alike."""

    pods: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()


class TrafficVerdict(Struct, frozen=True):
    traffic: str
    verdict: Literal["Allow", "Deny"]
    rules: tuple[str, ...]


class PeerVerdicts(Struct, frozen=True):
    peers: PeerGroup
    verdicts: tuple[TrafficVerdict, ...]


class DirectionExplanation(Struct, frozen=True):
    policies: tuple[str, ...]  # that select the Pod for this direction
    peers: tuple[PeerVerdicts, ...]


class PodExplanation(Struct, frozen=True):
    pod: str
    node: str
    addresses: tuple[str, ...]
    ingress: DirectionExplanation
    egress: DirectionExplanation


class ConnectivityChange(Struct, frozen=True, rename="camel"):
    """Traffic from these sources to these destinations that passed before and does not now, or the reverse."""

    change: Literal["Added", "Removed"]
    source: PeerGroup
    destination: PeerGroup
    traffic: str
    rules_before: tuple[str, ...]
    rules_now: tuple[str, ...]


class ConnectivityDifference(Struct, frozen=True, rename="camel"):
    added_pods: tuple[str, ...]
    removed_pods: tuple[str, ...]
    changes: tuple[ConnectivityChange, ...]

    def __bool__(self) -> bool:
        return bool(self.added_pods or self.removed_pods or self.changes)


# --- one Pod ----------------------------------------------------------------------------------------------------------


def explain(connectivity: Connectivity, pod: str, peers: Iterable[End] | None = None) -> PodExplanation:
    """With `peers`: only the traffic with these."""
    own = [end for end in connectivity.ends if (end.kind, end.name) == (EndKind.POD, pod)]
    others = connectivity.ends if peers is None else tuple(peers)
    return PodExplanation(
        pod,
        own[0].node,
        tuple(str(end.address) for end in own),
        *(
            DirectionExplanation(
                connectivity.policies_of(pod, direction), tuple(_peer_verdicts(connectivity, own, others, direction))
            )
            for direction in (Direction.INGRESS, Direction.EGRESS)
        ),
    )


def _peer_verdicts(
    connectivity: Connectivity, own: list[End], others: Iterable[End], direction: Direction
) -> Iterator[PeerVerdicts]:
    alike: dict[tuple[Verdict, ...], list[tuple[EndName, int]]] = {}
    versions: dict[EndName, set[int]] = {}
    for other in others:
        for end in own:
            if end.address.version == other.address.version:
                pair = (other, end) if direction is Direction.INGRESS else (end, other)
                verdicts = connectivity.between(*pair)
                if relation(*pair) is Relation.ITSELF and all(verdict.allowed for verdict in verdicts):
                    continue  # expected, so it is not listed
                label = _label(other, relation(*pair))
                alike.setdefault(verdicts, []).append((label, other.address.version))
                versions.setdefault(label, set()).add(other.address.version)
    rows = [PeerVerdicts(_peers(members, versions), _in_words(found)) for found, members in alike.items()]
    yield from sorted(rows, key=_order)


def _order(row: PeerVerdicts) -> tuple[bool, bool, bool, PeerGroup]:
    """Allowed traffic first; then Pods before Nodes before networks."""
    denied = all(one.verdict == "Deny" for one in row.verdicts)
    return denied, not row.peers.pods, not row.peers.nodes, row.peers


def _in_words(verdicts: Iterable[Verdict]) -> tuple[TrafficVerdict, ...]:
    """The part with protocols without ports comes last, as everything else."""
    ordered = sorted(verdicts, key=lambda verdict: contains(verdict.ports, None, None))
    return tuple(
        TrafficVerdict(
            _rest_in_words(one.ports) if len(ordered) > 1 and one is ordered[-1] else in_words(one.ports),
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
        tuple(sorted(_merged(_Comparison(old, new)), key=lambda one: (one.change, one.source, one.destination))),
    )


_Change = tuple[str, PortSet, tuple[str, ...], tuple[str, ...]]  # what, traffic, rules before, rules now
_Member = tuple[EndName, int]  # with the IP version
_Joint = tuple[Profile, Profile]  # before and now


class _Comparison:
    """The ends that both states have, and what differs between them."""

    def __init__(self, old: Connectivity, new: Connectivity) -> None:
        self._old, self._new = old, new
        self.groups: dict[_Joint, list[End]] = {}
        for before, now in self._ends():
            self.groups.setdefault((old.profile(before), new.profile(now)), []).append(now)
        self.versions: dict[EndName, set[int]] = {}
        for members in self.groups.values():
            for end in members:
                for label in (_label(end, Relation.APART), (end.kind.value, OWN_NODE), (end.kind.value, ITSELF)):
                    self.versions.setdefault(label, set()).add(end.address.version)

    def _ends(self) -> Iterator[tuple[End, End]]:
        prefixes = self._old.prefixes() | self._new.prefixes()
        before, now = (
            {
                (end.kind, end.name, end.address.version, number): end
                for number, end in _numbered((*_machines(one), *one.networks(prefixes)))
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
                    yield _members(pairs, 0, kind), _members(pairs, 1, kind), change

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


def _machines(connectivity: Connectivity) -> Iterator[End]:
    return (end for end in connectivity.ends if end.kind is not EndKind.NETWORK)


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
        if len({one.name for one in sources}) > 1:
            found[Relation.APART] = found[Relation.ITSELF]
        return found
    for pair in product(sources, destinations):
        found.setdefault(relation(*pair), []).append(pair)
    return found


def _members(pairs: Iterable[tuple[End, End]], place: int, kind: Relation) -> frozenset[_Member]:
    is_related_end = {
        Relation.APART: False,
        Relation.ITSELF: place == 1,
        Relation.TO_OWN_NODE: place == 1,
        Relation.FROM_OWN_NODE: place == 0,
    }[kind]
    return frozenset(
        (_label(pair[place], kind if is_related_end else Relation.APART), pair[place].address.version) for pair in pairs
    )


def _deciding(verdicts: Iterable[Verdict], ports: PortSet) -> tuple[str, ...]:
    concerned = (one for one in verdicts if intersection(one.ports, ports))
    return tuple(dict.fromkeys(rule for one in concerned for rule in _rules(one)))


def _merged(comparison: _Comparison) -> Iterator[ConnectivityChange]:
    """First all destinations of the same sources, then all sources of the same destinations."""
    by_source: dict[tuple[frozenset[_Member], _Change], frozenset[_Member]] = {}
    for source, destination, change in comparison.changes():
        by_source[source, change] = by_source.get((source, change), frozenset()) | destination
    by_destination: dict[tuple[frozenset[_Member], _Change], frozenset[_Member]] = {}
    for (source, change), destination in by_source.items():
        by_destination[destination, change] = by_destination.get((destination, change), frozenset()) | source
    for (destination, (what, ports, before, now)), source in by_destination.items():
        yield ConnectivityChange(
            "Added" if what == "Added" else "Removed",
            _peers(source, comparison.versions),
            _peers(destination, comparison.versions),
            in_words(ports) if ports == ALL_PORTS or not contains(ports, None, None) else _except_in_words(ports),
            before,
            now,
        )


def _except_in_words(ports: PortSet) -> str:
    return f"everything except {in_words(difference(ALL_PORTS, ports))}"


# --- names ------------------------------------------------------------------------------------------------------------


def _label(end: End, kind: Relation) -> EndName:
    match kind:
        case Relation.ITSELF:
            return end.kind.value, ITSELF
        case Relation.TO_OWN_NODE | Relation.FROM_OWN_NODE if end.kind is EndKind.NODE:
            return end.kind.value, OWN_NODE
    return end.kind.value, end.name


def _peers(members: Iterable[_Member], versions: dict[EndName, set[int]]) -> PeerGroup:
    """The name of an end gets its IP version if only one of its versions is among the members."""
    meant: dict[EndName, set[int]] = {}
    for label, version in members:
        meant.setdefault(label, set()).add(version)
    names: dict[str, list[str]] = {}
    for label, found in meant.items():
        kind, name = label
        suffix = "" if found == versions[label] else f" (IPv{min(found)})"
        names.setdefault(kind, []).append(name + suffix)
    pods, nodes, networks = (tuple(sorted(names.get(kind.value, ()))) for kind in EndKind)
    return PeerGroup(pods, nodes, networks)
