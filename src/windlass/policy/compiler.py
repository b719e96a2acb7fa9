"""Compiles policies into what the switch of one Node looks up for a packet, and updates it with each change.

For each direction a local Pod with policies has a subject, each address or network that a rule selects has a class, and
each pair of subject and class has one exact set of allowed ports. Work grows with the change: a Pod on another Node is
one entry, a policy affects the subjects that it selects and the classes that its rules select.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from windlass.cluster.clusters import Namespaces
from windlass.cluster.policy_objects import Labels
from windlass.model.families import IPAddress
from windlass.model.policies import NO_CLASS, Direction, PodPolicy, digest_of
from windlass.model.port_sets import ALL_PORTS, PortSet, contains
from windlass.model.prefixes import Prefix, prefix_of
from windlass.model.services import Protocol
from windlass.policy.classes import NO_PEERS, ClassPart, PeerClasses
from windlass.policy.directories import Directory, PeerNode, SelectablePod
from windlass.policy.rules import ReadPolicy, Tier
from windlass.policy.selector_places import PlaceIndex, places_of_pod, places_of_selector
from windlass.policy.subject_rules import RulesOfSubject
from windlass.policy.subjects import RuleOutcome, Subject, subject_of


@dataclass(slots=True)
class Verdicts:
    """The allowed ports of a subject, for each class of peers."""

    default: PortSet  # for classes that are not in `by_class`
    by_class: dict[int, PortSet] = field(default_factory=dict)
    # Only if rules are counted: what each rule decides, for the same classes, and for NO_CLASS the default.
    by_rule: dict[int, tuple[RuleOutcome, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What has changed in one direction."""

    pods: frozenset[str]
    subjects: frozenset[int]
    entries: tuple[Prefix, ...]


class DirectionCompiler:
    """Compiles one direction. Its owner calls it with each change."""

    def __init__(self, direction: Direction, directory: Directory, *, counts_rules: bool) -> None:
        self.pods: dict[str, PodPolicy] = {}
        self.verdicts: dict[int, Verdicts] = {}  # by subject
        self.peers = PeerClasses(directory)
        self._direction = direction
        self._directory = directory
        self._counts_rules = counts_rules
        self._subjects: dict[int, RulesOfSubject] = {}
        self._users: dict[int, set[str]] = {}  # the Pods of a subject
        self._mentions: dict[ClassPart, set[int]] = {}  # the subjects whose rules use a selector, block or port name
        self._with_named_ports_for_all: set[int] = set()  # subjects with a named port for peers that no selector limits
        self._changed_pods: set[str] = set()
        self._changed_subjects: set[int] = set()
        self._new_subjects: set[int] = set()

    @property
    def entries(self) -> Mapping[Prefix, int]:
        return self.peers.entries

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces whose Pods the rules in use select; None: all."""
        return None if self._with_named_ports_for_all else self.peers.namespaces

    def set_subject(self, pod: str, subject: Subject | None) -> None:
        before = self.pods.get(pod)
        if (before.subject if before else None) == (subject.number if subject else None):
            return
        self._changed_pods.add(pod)
        if subject is not None:
            if subject.number not in self._subjects:
                self._add_subject(RulesOfSubject(subject, self._direction))
            self._users.setdefault(subject.number, set()).add(pod)
            self.pods[pod] = PodPolicy(subject.number, ())  # `settle` adds the rest
        else:
            del self.pods[pod]
        if before is not None:
            self._users[before.subject].discard(pod)
            if not self._users[before.subject]:
                del self._users[before.subject]
                self._remove_subject(before.subject)

    def settle(self, local: Iterable[str]) -> PolicyChange:
        """Compiles the changes since the last call, and returns what differs now."""
        self.peers.refresh()
        for number in self.peers.removed:
            for subject, verdicts in self.verdicts.items():
                verdicts.by_rule.pop(number, None)
                if verdicts.by_class.pop(number, None) is not None:
                    self._changed_subjects.add(subject)
        for number in self.peers.added:
            parts = self.peers.classes[number].parts
            for subject in {one for part in parts for one in self._mentions.get(part, ())}:
                self._judge(subject, number)
        for subject in self._new_subjects:
            for number in self._classes_of(self._subjects[subject]) - self.peers.added:  # these were judged above
                self._judge(subject, number)
        self._new_subjects.clear()
        for pod in local:
            self._judge_itself(pod)
        change = PolicyChange(
            frozenset(self._changed_pods), frozenset(self._changed_subjects), tuple(self.peers.changed)
        )
        self._changed_pods.clear()
        self._changed_subjects.clear()
        self.peers.forget_changes()
        return change

    def allowed(self, pod: str, peer: IPAddress) -> PortSet:
        """The traffic that the Pod may exchange with this address, by the lookups that the switch makes."""
        if (policy := self.pods.get(pod)) is None:
            return ALL_PORTS
        address = prefix_of(peer)
        for own, ports in policy.itself:
            if own == address:
                return ports
        verdicts = self.verdicts[policy.subject]
        return verdicts.by_class.get(self.peers.class_of(address).number, verdicts.default)

    def explain(self, pod: str, peer: IPAddress) -> tuple[RuleOutcome, ...]:
        """Which rule decides which traffic between the Pod and this address."""
        if (policy := self.pods.get(pod)) is None:
            return (RuleOutcome(None, allows=True, ports=ALL_PORTS),)
        return self._subjects[policy.subject].outcomes(self.peers.class_of(prefix_of(peer)))

    def decisions(self, subject: int, peer_class: int) -> dict[RuleOutcome, None]:
        """Which rule decides which traffic with this class. NO_CLASS: with all classes that have no own verdict."""
        rules, known = self._subjects[subject], self.peers.classes
        if peer_class != NO_CLASS:
            return dict.fromkeys(rules.outcomes(known[peer_class]))
        others = self._classes_of(rules) - self.verdicts[subject].by_class.keys()
        classes = (NO_PEERS, *(known[number] for number in sorted(others)))
        return dict.fromkeys(outcome for one in classes for outcome in rules.outcomes(one))

    # --- details ------------------------------------------------------------------------------------------------------

    def _add_subject(self, rules: RulesOfSubject) -> None:
        number = rules.subject.number
        self._subjects[number] = rules
        if rules.names_ports_of_anyone:
            self._with_named_ports_for_all.add(number)
        self._changed_subjects.add(number)
        for peers, one in rules.peers.items():
            self.peers.use(peers, one)
        for name in rules.names:
            self.peers.use_name(name)
        for part in rules.parts:
            self._mentions.setdefault(part, set()).add(number)
        self.verdicts[number] = Verdicts(rules.allowed(NO_PEERS))
        if self._counts_rules:
            self.verdicts[number].by_rule[NO_CLASS] = rules.parts_by_rule(NO_PEERS)
        self._new_subjects.add(number)

    def _remove_subject(self, number: int) -> None:
        rules = self._subjects.pop(number)
        self._new_subjects.discard(number)
        self._with_named_ports_for_all.discard(number)
        del self.verdicts[number]
        self._changed_subjects.add(number)
        for part in rules.parts:
            self._mentions[part].discard(number)
            if not self._mentions[part]:
                del self._mentions[part]
        for peers, one in rules.peers.items():
            self.peers.release(peers, one)
        for name in rules.names:
            self.peers.release_name(name)

    def _classes_of(self, rules: RulesOfSubject) -> set[int]:
        """The classes about which the rules may decide."""
        return {one for part in rules.parts for one in self.peers.having.get(part, ())}

    def _judge(self, subject: int, number: int) -> None:
        verdicts, rules, peer_class = self.verdicts[subject], self._subjects[subject], self.peers.classes[number]
        ports = rules.allowed(peer_class)
        before = verdicts.by_class.get(number)
        if self._counts_rules and (parts := rules.parts_by_rule(peer_class)) != verdicts.by_rule[NO_CLASS]:
            verdicts.by_class[number], verdicts.by_rule[number] = ports, parts
        elif ports != verdicts.default:
            verdicts.by_class[number] = ports
        else:
            verdicts.by_class.pop(number, None)
            verdicts.by_rule.pop(number, None)
        if verdicts.by_class.get(number) != before:
            self._changed_subjects.add(subject)

    def _judge_itself(self, key: str) -> None:
        policy = self.pods.get(key)
        if policy is None:
            return
        rules, pod = self._subjects[policy.subject], self._directory.pods.get(key)
        addresses = pod.addresses if pod else ()
        itself = tuple((address, self._allowed_to_itself(rules, address)) for address in addresses)
        if itself != policy.itself:
            self.pods[key] = PodPolicy(policy.subject, itself)
            self._changed_pods.add(key)

    def _allowed_to_itself(self, rules: RulesOfSubject, own: Prefix) -> PortSet:
        """Only ClusterNetworkPolicies need the class: without them this is quick, and it is called at each change."""
        return rules.allowed_to_itself(self.peers.class_of(own)) if rules.subject.has_tiers else ALL_PORTS


class PolicyCompiler:
    """Both directions of one Node."""

    def __init__(self, node: str, *, counts_rules: bool = False, awaits_namespaces: bool = False) -> None:
        """`counts_rules`: the switch counts packets for each rule, which needs more flows.

        `awaits_namespaces`: a Pod may be known before its namespace.
        """
        self._directory = Directory(node, awaits_namespaces=awaits_namespaces)
        self.egress = DirectionCompiler(Direction.EGRESS, self._directory, counts_rules=counts_rules)
        self.ingress = DirectionCompiler(Direction.INGRESS, self._directory, counts_rules=counts_rules)
        self._policies: dict[str, tuple[int, ReadPolicy]] = {}  # with their digests
        # The policies that select each Pod of this Node, by their keys.
        self._local: dict[str, dict[str, tuple[int, ReadPolicy]]] = {}
        self._local_at, self._policies_at = PlaceIndex(), PlaceIndex()
        self._selected: dict[str, set[str]] = {}  # the Pods of this Node that each policy selects
        self._unsettled: set[str] = set()  # local Pods whose subjects may have changed
        # Whether policies or labels have changed. A Pod that is added or removed has no open connections. The reader
        # clears this.
        self.concerns_open_connections = False

    def of(self, direction: Direction) -> DirectionCompiler:
        return self.egress if direction is Direction.EGRESS else self.ingress

    def set_policy(self, key: str, policy: ReadPolicy | None) -> None:
        self.concerns_open_connections = True
        if (before := self._policies.pop(key, None)) is not None:
            self._policies_at.remove(key, places_of_selector(before[1].subject))
        for pod in self._selected.pop(key, ()):
            del self._local[pod][key]
            self._unsettled.add(pod)
        if policy is None:
            return
        self._policies[key] = digest_of(policy), policy
        places = places_of_selector(policy.subject)
        self._policies_at.add(key, places)
        for pod in self._local_at.at(places):
            if self._selects(policy, pod):
                self._select(pod, key)

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        if labels != self._directory.namespaces.get(name):
            self.concerns_open_connections = True
        self._directory.set_namespace(name, labels)
        for pod in self._local:
            if pod.partition("/")[0] == name:
                self._select_for(pod)
                self._unsettled.add(pod)
        self.egress.peers.follow_namespace(name)
        self.ingress.peers.follow_namespace(name)

    def set_pod(self, key: str, pod: SelectablePod | None, *, local: bool) -> None:
        before = self._directory.set_pod(key, pod)
        if before is not None and pod is not None and before.attributes != pod.attributes:
            self.concerns_open_connections = True
        self.egress.peers.follow_pod(before, pod)
        self.ingress.peers.follow_pod(before, pod)
        is_same = local and pod is not None and before is not None and before.labels == pod.labels
        if key in self._local and not is_same:
            self._forget_local(key, before)
        if local and pod is not None:
            if not is_same or key not in self._local:
                self._local_at.add(key, places_of_pod(pod.namespace, pod.labels))
                self._select_for(key)
            self._unsettled.add(key)

    def set_listed(self, namespaces: Namespaces) -> None:
        """The namespaces all of whose Pods have been told; None: all.

        An unknown address in a network of Pods may be one of another namespace: rules that may deny it deny it.
        """
        if namespaces != self._directory.listed:
            self._directory.listed = namespaces
            self.concerns_open_connections = True

    def set_node(self, name: str, node: PeerNode | None) -> None:
        before = self._directory.set_node(name, node)
        if before != node:
            self.concerns_open_connections = True
        self.egress.peers.follow_addresses(before, node)
        self.ingress.peers.follow_addresses(before, node)

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces whose Pods the policies of this Node's Pods select, as of the last `settle`; None: all."""
        egress, ingress = self.egress.namespaces, self.ingress.namespaces
        return None if egress is None or ingress is None else egress | ingress

    def is_local(self, pod: str) -> bool:
        """Whether this is a Pod of this Node whose labels are known."""
        return pod in self._local

    def may_select_in(self, namespace: str) -> bool:
        """Whether a policy can select Pods of this namespace, whatever their labels are."""
        selects = self._directory.selects_namespace
        return any(selects(policy.subject, namespace) is not False for _, policy in self._policies.values())

    def lacks_labels_of(self, namespace: str) -> bool:
        """Whether this namespace is not known yet, although a policy may select Pods by its labels.

        The label with the name of a namespace is known without its object.
        """
        if namespace in self._directory.namespaces:
            return False
        selects = self._directory.selects_namespace
        return any(selects(policy.subject, namespace) is None for _, policy in self._policies.values())

    def local_pod_at(self, address: IPAddress) -> str | None:
        pod = self._directory.pod_at(prefix_of(address))
        return pod.key if pod is not None and pod.key in self._local else None

    def name_of(self, address: IPAddress) -> str:
        """The name of the Pod or Node with this address; empty if it is neither."""
        prefix = prefix_of(address)
        pod = self._directory.pod_at(prefix)
        return pod.key if pod else next((f"Node {node.name}" for node in self._directory.nodes_at(prefix)), "")

    def denying(
        self, direction: Direction, pod: str, peer: IPAddress, protocol: Protocol | None, port: int | None
    ) -> tuple[str, ...]:
        """The rules that deny a local Pod this traffic, or the NetworkPolicies none of which allows it."""
        decided = [one for one in self.of(direction).explain(pod, peer) if contains(one.ports, protocol, port)]
        if any(one.allows for one in decided):
            return ()
        if rules := tuple(one.rule.name for one in decided if one.rule is not None):
            return rules
        return self.isolating(direction, pod)

    def isolating(self, direction: Direction, pod: str) -> tuple[str, ...]:
        """The NetworkPolicies that select a local Pod: they deny all traffic that none of them allows."""
        selecting = (policy for _, policy in self._local.get(pod, {}).values() if policy.rules(direction) is not None)
        return tuple(sorted(policy.name for policy in selecting if policy.tier is Tier.NETWORK_POLICY))

    def settle(self) -> Mapping[Direction, PolicyChange]:
        """Returns what has changed in each direction since the last call."""
        known: dict[object, tuple[Subject | None, Subject | None]] = {}  # many Pods have the same policies
        for key in self._unsettled:
            selecting = self._local.get(key, {}).values()
            ports = self._directory.pods[key].named_ports if selecting else ()
            alike = frozenset([number for number, _ in selecting]), ports
            if alike not in known:
                known[alike] = (
                    subject_of(selecting, Direction.EGRESS, ports),
                    subject_of(selecting, Direction.INGRESS, ports),
                )
            egress, ingress = known[alike]
            self.egress.set_subject(key, egress)
            self.ingress.set_subject(key, ingress)
        self._unsettled.clear()
        return {
            Direction.EGRESS: self.egress.settle(self._local),
            Direction.INGRESS: self.ingress.settle(self._local),
        }

    def _select_for(self, key: str) -> None:
        """Call it when a Pod of this Node is new, or when its labels or those of its namespace have changed."""
        for name in self._local.get(key, ()):
            self._selected[name].discard(key)
        self._local[key] = {}
        pod = self._directory.pods[key]
        for name in self._policies_at.at(places_of_pod(pod.namespace, pod.labels)):
            if self._selects(self._policies[name][1], key):
                self._select(key, name)

    def _select(self, pod: str, policy: str) -> None:
        self._local[pod][policy] = self._policies[policy]
        self._selected.setdefault(policy, set()).add(pod)
        self._unsettled.add(pod)

    def _forget_local(self, key: str, pod: SelectablePod | None) -> None:
        """Call it when a Pod is gone, has other labels, or is not on this Node any more."""
        if pod is not None:
            self._local_at.remove(key, places_of_pod(pod.namespace, pod.labels))
        for name in self._local.pop(key):
            self._selected[name].discard(key)
        self._unsettled.add(key)

    def _selects(self, policy: ReadPolicy, key: str) -> bool:
        pod = self._directory.pods.get(key)
        return pod is not None and self._directory.selects(policy.subject, pod)
