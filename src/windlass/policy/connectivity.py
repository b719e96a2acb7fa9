"""Which traffic policies allow between any two ends of a cluster, and which rules decide. Pure.

It judges all ports at once, and ends with the same policies and labels together, so the work does not grow with the
number of Pods. Traffic is judged as by the switches of both Nodes: by the egress policies of the source and by the
ingress policies of the destination.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.model.policies import Direction, digest_of
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet, atoms, intersection, union
from windlass.model.prefixes import Prefix, address_of, network_of, prefix_of
from windlass.model.services import Protocol
from windlass.policy.blocks import networks_of, within
from windlass.policy.classes import PeerClass, PeerClasses
from windlass.policy.directories import Directory, PeerNode, SelectablePod
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.policy.rules import BlockPeers, OwnNode, PolicyRule, ReadPolicy, RuleAction, Tier, number_of
from windlass.policy.subjects import RuleOutcome, Subject, TierRule, outcomes, subject_of
from windlass.policy.worlds import PolicyPod, PolicyWorld

_OWN_NODE = number_of(OwnNode())
_ITSELF = TierRule(
    Tier.NETWORK_POLICY,
    PolicyRule("a NetworkPolicy cannot deny a Pod access to itself", RuleAction.ACCEPT),
)
_FROM_OWN_NODE = "a Pod always accepts its own Node"


class EndKind(Enum):
    POD = "Pod"
    NODE = "Node"
    NETWORK = "network"


class End(Struct, frozen=True, gc=False):
    """A source or destination of traffic, with one address. The address of a network is an example."""

    kind: EndKind
    name: str  # namespace/name of a Pod, the name of a Node, or the network
    address: IPAddress
    node: str = ""  # on which a Pod runs
    has_known_address: bool = True  # False: a placeholder of a Pod
    is_workload: bool = False  # it stands for all replicas


class Verdict(Struct, frozen=True, gc=False):
    """The decision about one part of the traffic between two ends."""

    ports: PortSet
    allowed: bool
    egress: tuple[str, ...] = ()  # the rules that decided; empty if no policy affects the source
    ingress: tuple[str, ...] = ()  # of the destination


class Relation(Enum):
    APART = "different machines"
    ITSELF = "the same Pod, through a Service"
    REPLICA = "another replica of the same workload"
    TO_OWN_NODE = "from a Pod to its own Node"
    FROM_OWN_NODE = "from a Node to its own Pod"


class Profile(Struct, frozen=True, gc=False):
    """Everything about an end that matters to policies. Ends with the same profile are treated alike."""

    kind: EndKind
    version: int  # of IP
    egress_subject: int | None
    ingress_subject: int | None
    as_destination: int  # its class for egress rules
    as_source: int


@dataclass(frozen=True, slots=True)
class _Ruled:
    """A subject, with the digests of its rules' peers, and the NetworkPolicies that isolate it."""

    subject: Subject
    peers: tuple[frozenset[int] | None, ...]  # of each rule; None: everyone
    isolated_by: tuple[str, ...]

    def matching(self, peers: frozenset[int]) -> list[TierRule]:
        rules = zip(self.subject.rules, self.peers, strict=True)
        return [rule for rule, wanted in rules if wanted is None or wanted & peers]


class Connectivity:
    """The allowed traffic in one state of a cluster."""

    def __init__(self, world: PolicyWorld) -> None:
        self.world = world
        self.problems: dict[str, list[str]] = {}  # by policy: the parts that cannot be read
        self.directory = _directory(world)
        self.policies = [*self._read_policies()]
        self._ruled: dict[int, _Ruled] = {}
        self._classes = {direction: PeerClasses(self.directory) for direction in Direction}
        self._known_classes: dict[tuple[Direction, int], PeerClass] = {}
        self._subjects = {direction: self._subjects_of(direction) for direction in Direction}
        self._use_rules()
        self._judged: dict[object, tuple[Verdict, ...]] = {}

    # --- the ends -----------------------------------------------------------------------------------------------------

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """Pods, Nodes, the networks in rules, and one network for all other addresses."""
        return (*self.machines(self.versions), *self.networks(self.prefixes(self.versions)))

    @cached_property
    def versions(self) -> frozenset[int]:
        """The versions of IP that are in use: those of known addresses and of networks in rules, or else IPv4."""
        pods = [pod.addresses for pod in self.world.pods if pod.has_known_addresses]
        nodes = [node.addresses for node in self.world.nodes]
        known = {address.version for addresses in (*pods, *nodes) for address in addresses}
        return frozenset((known or {4}) | {version for version, _, _ in self._blocks})

    def machines(self, versions: Collection[int]) -> tuple[End, ...]:
        """Pods and Nodes. A Pod whose addresses are not known has one of each of these versions."""
        pods = [
            End(EndKind.POD, key_of(pod), address, pod.node, pod.has_known_addresses, pod.is_workload)
            for pod in self.world.pods
            for address in pod.addresses
            if pod.has_known_addresses or address.version in versions
        ]
        nodes = [End(EndKind.NODE, node.name, address) for node in self.world.nodes for address in node.addresses]
        return (*pods, *nodes)

    def prefixes(self, versions: Collection[int]) -> set[Prefix]:
        """The networks in rules, and the network of all addresses in each version that Pods or rules have."""
        pods = {end.address.version for end in self.machines(versions) if end.kind is EndKind.POD}
        return self._blocks | {(version, 0, 0) for version in pods | {prefix[0] for prefix in self._blocks}}

    @cached_property
    def _blocks(self) -> set[Prefix]:
        """The networks in rules."""
        return {
            prefix
            for policy in self.policies
            for direction in Direction
            for rule in policy.rules(direction) or ()
            for peers in rule.peers or ()
            if isinstance(peers, BlockPeers)
            for prefix in networks_of(peers)
        }

    def networks(self, prefixes: Iterable[Prefix]) -> Iterator[End]:
        """An end for each network with addresses that are neither in a longer prefix nor those of a Pod or Node."""
        pods = {prefix_of(address) for pod in self.world.pods for address in pod.addresses}
        machines = pods | {prefix_of(address) for node in self.world.nodes for address in node.addresses}
        named = {*prefixes}
        ordered = sorted(named | machines)
        for prefix in sorted(named - machines):
            if (sample := _outside_of_longer(prefix, ordered)) is not None:
                yield End(EndKind.NETWORK, str(network_of(prefix)), sample)

    def end_at(self, address: IPAddress) -> End:
        """The Pod or the Node with this address, or else the address itself."""
        machines = [end for end in self.machines({4, 6}) if end.address.version == address.version]
        found = (end for end in machines if end.address == address and end.has_known_address)
        example, placeholders = address, {end.address for end in machines if not end.has_known_address}
        while example in placeholders:
            example += 1
        return next(found, End(EndKind.NETWORK, str(address), example))

    def policies_of(self, pod: str, direction: Direction) -> tuple[str, ...]:
        """The policies that affect the Pod, in the order of evaluation."""
        found = (p for p in self.policies if p.rules(direction) is not None and self._selects(p, pod))
        return tuple(policy.name for policy in sorted(found, key=lambda policy: policy.order))

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def profile(self, end: End) -> Profile:
        is_pod = end.kind is EndKind.POD
        return Profile(
            end.kind,
            end.address.version,
            self._subjects[Direction.EGRESS].get(end.name) if is_pod else None,
            self._subjects[Direction.INGRESS].get(end.name) if is_pod else None,
            self._class(Direction.EGRESS, end.address),
            self._class(Direction.INGRESS, end.address),
        )

    def between(self, source: End, destination: End, kind: Relation | None = None) -> tuple[Verdict, ...]:
        """Each part of the traffic is in exactly one of the verdicts. `kind` is one of their `relations`."""
        return self.judge(self.profile(source), self.profile(destination), kind or relation(source, destination))

    def judge(self, source: Profile, destination: Profile, relation: Relation) -> tuple[Verdict, ...]:
        key = (
            source.egress_subject, destination.as_destination, source.as_source, destination.ingress_subject, relation
        )  # fmt: skip
        if (known := self._judged.get(key)) is None:
            self._judged[key] = known = tuple(_both(*self._directions(source, destination, relation)))
        return known

    def _directions(
        self, source: Profile, destination: Profile, relation: Relation
    ) -> tuple[tuple[Verdict, ...], tuple[Verdict, ...]]:
        egress = self._decisions(Direction.EGRESS, source.egress_subject, destination.as_destination, relation)
        ingress = self._decisions(Direction.INGRESS, destination.ingress_subject, source.as_source, relation)
        if relation is Relation.FROM_OWN_NODE and destination.ingress_subject is not None:
            ingress = (Verdict(ALL_PORTS, allowed=True, ingress=(_FROM_OWN_NODE,)),)
        return egress, ingress

    def _decisions(
        self, direction: Direction, subject: int | None, peer_class: int, relation: Relation
    ) -> tuple[Verdict, ...]:
        if subject is None:
            return (Verdict(ALL_PORTS, allowed=True),)
        ruled, peers = self._ruled[subject], self._known_classes[direction, peer_class]
        matched = peers.peers | {_OWN_NODE} if relation is Relation.TO_OWN_NODE else peers.peers
        rules = ruled.matching(matched)
        if relation is Relation.ITSELF and ruled.subject.isolated:
            rules.append(_ITSELF)
        decided = [*outcomes(ruled.subject, rules, peers.named_ports)]
        return tuple(_as_verdicts(direction, decided, ruled.isolated_by))

    # --- details ------------------------------------------------------------------------------------------------------

    def _read_policies(self) -> Iterator[ReadPolicy]:
        network_policies = map(read_network_policy, self.world.network_policies)
        cluster_policies = map(read_cluster_network_policy, self.world.cluster_network_policies)
        for policy, problems in chain(network_policies, cluster_policies):
            if problems:
                self.problems[policy.name] = problems
            yield policy

    def _subjects_of(self, direction: Direction) -> dict[str, int]:
        """The subject of each Pod with policies. Pods with the same labels have the same policies."""
        concerned = [(digest_of(p), p) for p in self.policies if p.rules(direction) is not None]
        found: dict[str, int] = {}
        for label_sets in self.directory.label_sets.values():
            for members in label_sets.values():
                one = self.directory.pods[min(members)]
                selecting = [entry for entry in concerned if self.directory.selects(entry[1].subject, one)]
                for key in members:
                    subject = subject_of(selecting, direction, self.directory.pods[key].named_ports)
                    if subject is not None:
                        found[key] = subject.number
                        self._ruled[subject.number] = _ruled(subject, direction, (policy for _, policy in selecting))
        return found

    def _selects(self, policy: ReadPolicy, pod: str) -> bool:
        return self.directory.selects(policy.subject, self.directory.pods[pod])

    def _use_rules(self) -> None:
        for direction, subjects in self._subjects.items():
            classes = self._classes[direction]
            used = {rule for number in subjects.values() for rule in self._ruled[number].subject.rules}
            for peers in {peers for one in used for peers in one.rule.peers or ()}:
                classes.use(number_of(peers), peers)
            if direction is Direction.EGRESS:  # for ingress, named ports are those of the subject
                for name in {named.name for one in used for named in one.rule.named_ports}:
                    classes.use_name(name)

    def _class(self, direction: Direction, address: IPAddress) -> int:
        found = self._classes[direction].class_of(prefix_of(address))
        self._known_classes[direction, found.number] = found
        return found.number


def relation(source: End, destination: End) -> Relation:
    match source.kind, destination.kind:
        case EndKind.POD, EndKind.POD if source.name == destination.name:
            return Relation.ITSELF
        case EndKind.POD, EndKind.NODE if source.node == destination.name:
            return Relation.TO_OWN_NODE
        case EndKind.NODE, EndKind.POD if source.name == destination.node:
            return Relation.FROM_OWN_NODE
    return Relation.APART


def relations(source: End, destination: End) -> tuple[Relation, ...]:
    """All of them: a workload stands for a Pod and for its other replicas."""
    kind = relation(source, destination)
    return (kind, Relation.REPLICA) if kind is Relation.ITSELF and source.is_workload else (kind,)


def allowed_ports(verdicts: Iterable[Verdict]) -> PortSet:
    return union(verdict.ports for verdict in verdicts if verdict.allowed)


def key_of(pod: PolicyPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _directory(world: PolicyWorld) -> Directory:
    directory = Directory("")  # each Pod has another own Node: Relation handles it
    for name, labels in world.namespaces.items():
        directory.set_namespace(name, labels)
    for node in world.nodes:
        addresses = tuple(map(prefix_of, node.addresses))
        directory.set_node(node.name, PeerNode(node.name, tuple(sorted(node.labels.items())), addresses))
    for pod in world.pods:
        named = tuple((name, Protocol[protocol], port) for name, protocol, port in pod.named_ports)
        labels_of_pod = tuple(sorted(pod.labels.items()))
        addresses = tuple(map(prefix_of, pod.addresses))
        directory.set_pod(key_of(pod), SelectablePod(pod.namespace, pod.name, labels_of_pod, addresses, named))
    return directory


def _ruled(subject: Subject, direction: Direction, selecting: Iterable[ReadPolicy]) -> _Ruled:
    peers = tuple(
        None if one.rule.peers is None else frozenset(map(number_of, one.rule.peers)) for one in subject.rules
    )
    isolating = sorted(policy.name for policy in selecting if policy.tier is Tier.NETWORK_POLICY)
    return _Ruled(subject, peers, tuple(f"no {direction.value} rule of {name} allows it" for name in isolating))


def _as_verdicts(
    direction: Direction, decided: Sequence[RuleOutcome], isolated_by: tuple[str, ...]
) -> Iterator[Verdict]:
    """Rules that allow traffic may overlap; a verdict names all rules that allow its part."""
    parts: dict[tuple[bool, tuple[str, ...]], PortSet] = {}
    for atom in atoms(one.ports for one in decided):
        deciding = [one for one in decided if intersection(one.ports, atom)]
        allowing = [one for one in deciding if one.allows]
        names = tuple(dict.fromkeys(one.rule.name for one in allowing or deciding if one.rule is not None))
        key = bool(allowing), names or (() if allowing else isolated_by)
        parts[key] = union((parts.get(key, NO_PORTS), atom))
    for (allowed, names), ports in parts.items():
        if direction is Direction.EGRESS:
            yield Verdict(ports, allowed, egress=names)
        else:
            yield Verdict(ports, allowed, ingress=names)


def _both(egress: Iterable[Verdict], ingress: Sequence[Verdict]) -> Iterator[Verdict]:
    """Traffic passes if both ends allow it. Where an end denies, only rules that deny are named."""
    parts: dict[tuple[bool, tuple[str, ...], tuple[str, ...]], PortSet] = {}
    for out in egress:
        for into in ingress:
            if ports := intersection(out.ports, into.ports):
                allowed = out.allowed and into.allowed
                key = (
                    allowed,
                    out.egress if allowed or not out.allowed else (),
                    into.ingress if allowed or not into.allowed else (),
                )
                parts[key] = union((parts.get(key, NO_PORTS), ports))
    for (allowed, out_rules, in_rules), ports in sorted(parts.items(), key=lambda part: (not part[0][0], part[1])):
        yield Verdict(ports, allowed, out_rules, in_rules)


def _outside_of_longer(prefix: Prefix, ordered: list[Prefix]) -> IPAddress | None:
    """An address of the network that is in no longer prefix of the list; None if there is none."""
    version, first, length = prefix
    bits = {4: 32, 6: 128}[version]
    candidate = first
    for _, start, longer in within(ordered, prefix):
        if longer > length:
            if candidate < start:
                break
            candidate = max(candidate, start + (1 << (bits - longer)))
    return address_of((version, candidate, bits)) if candidate < first + (1 << (bits - length)) else None
