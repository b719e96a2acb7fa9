"""The policies of one Node's Pods, from one state of the cluster to the next. Pure.

`windlass.policy` decides what a policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace

from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import Namespace, Node, PeerPod, Pod, Problem
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.families import IPAddress
from windlass.model.nodes import AttachedPod, LocalNode
from windlass.model.policies import DENY_UNTIL_KNOWN, NodePolicies
from windlass.nodes.policy_peers import peer_node, selectable_pod
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.directories import namespace_labels
from windlass.policy.node_policies import CompiledPolicies, SettledKeys
from windlass.policy.readings import read_cluster_network_policy, read_network_policy

_NOTHING = SettledKeys(frozenset(), frozenset(), frozenset(), frozenset())
_KINDS = (Namespace, Node, Pod, PeerPod, NetworkPolicy, ClusterNetworkPolicy)  # what policies depend on
_PODS, _POLICIES = 200, 50  # objects to read before other tasks run: about a millisecond


class FollowedPolicies:
    """`following` reads changes of the cluster, `settle` compiles them for the Pods on this Node."""

    def __init__(self, node: str, *, counts_rules: bool = False, awaits_namespaces: bool = False) -> None:
        """`awaits_namespaces`: a Pod may be known before its namespace."""
        self.compiler = PolicyCompiler(node, counts_rules=counts_rules, awaits_namespaces=awaits_namespaces)
        self.policies = NodePolicies()
        self._compiled = CompiledPolicies(self.compiler)
        self._node = node
        self.cluster = Cluster()  # what was read last
        self._pods: Mapping[str, AttachedPod] = {}  # by container id
        self._attached: dict[str, tuple[IPAddress, ...]] = {}  # the addresses of each Pod with a port, by its key
        self._local: LocalNode | None = None  # of the last `settle`
        self._own_addresses: tuple[IPAddress, ...] = ()
        self._is_settled = False  # no object has changed since the last `settle`
        # Pods that the agent asked for because the watch had not delivered them yet, by key
        self._asked: dict[str, Pod] = {}
        self._uids: dict[str, str] = {}  # of Pods with a port, as far as the container runtime has told them
        self._unreturned = _NOTHING  # differences that `settle` has not returned yet
        # What was settled may concern open connections. The reader clears this. At first the policies of an earlier
        # agent may be gone.
        self.review_is_due = True
        self._unknown: frozenset[str] = frozenset()  # Pods with a port that the watch has not delivered yet
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._listed: tuple[Problem, ...] | None = ()  # all problems, sorted; None: must be rebuilt

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The unusable parts of policies. The same object until one is added, removed or changed."""
        if self._listed is None:
            self._listed = tuple(one for key in sorted(self._problems) for one in self._problems[key])
        return self._listed

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces whose Pods the policies of this Node's Pods select, as far as read; None: all."""
        if not self._is_settled:
            self._compile()
        return self.compiler.namespaces

    @staticmethod
    def depends_on(changes: ChangeSet) -> bool:
        return changes.concerns(*_KINDS)

    def following(self, cluster: Cluster, changes: ChangeSet = EVERYTHING) -> Generator[None, None, None]:
        """Read what has changed, in slices. The generator must be run to its end, and then `settle` called."""
        before, self.cluster = self.cluster, cluster
        if before.listed_namespaces != cluster.listed_namespaces:
            self._is_settled = False
            self.compiler.set_listed(cluster.listed_namespaces)
        if not self.depends_on(changes):
            return
        self._is_settled = False
        for name in changes.keys_between(Namespace, before.namespaces, cluster.namespaces):
            namespace = cluster.namespaces.get(name)
            labels = namespace_labels(name, namespace.metadata.labels) if namespace else None
            self.compiler.set_namespace(name, labels)
        for name in changes.keys_between(Node, before.nodes, cluster.nodes):
            self._set_node(name)
        pods = changes.keys_between(Pod, before.pods, cluster.pods)
        for key in pods:
            self._forget_outdated(key, before.pods.get(key))
        peers = changes.keys_between(PeerPod, before.peer_pods, cluster.peer_pods)
        yield from _in_slices(self._set_pod, (*pods, *peers), _PODS)
        policies = changes.keys_between(NetworkPolicy, before.network_policies, cluster.network_policies)
        yield from _in_slices(self._set_network_policy, policies, _POLICIES)
        old, new = before.cluster_network_policies, cluster.cluster_network_policies
        policies = changes.keys_between(ClusterNetworkPolicy, old, new)
        yield from _in_slices(self._set_cluster_network_policy, policies, _POLICIES)

    def settle(self, node: LocalNode, pods: Mapping[str, AttachedPod]) -> SettledKeys:
        """Update `policies` to what was read, for these Pods with a port. Returns the keys that have changed."""
        if self._is_settled and node is self._local and pods is self._pods:
            return _NOTHING
        self._is_settled, self._local = True, node
        own = tuple(a for f in node.families for a in (*node.own_addresses(f), node.gateway(f)))
        if own != self._own_addresses:
            self._own_addresses = own
            self._set_node(self._node)
        attached = self._follow_attached(pods) if pods is not self._pods else frozenset()
        self._compile()
        settled, self._unreturned = self._unreturned, _NOTHING
        unknown = frozenset(key for key in self._attached if not self._is_known(key))
        changed = settled.pods | (unknown ^ self._unknown)
        concerns_open = self.compiler.concerns_open_connections and any(settled)
        self.review_is_due |= concerns_open or unknown != self._unknown
        self.compiler.concerns_open_connections = False
        self._unknown = unknown
        self.policies = self._compiled.policies
        if unknown:
            known = self.policies.pods
            self.policies = replace(self.policies, pods={**known, **dict.fromkeys(unknown, DENY_UNTIL_KNOWN)})
        # An earlier Pod with the address of a new one may have left open connections.
        self.review_is_due |= not attached.isdisjoint(self.policies.pods)
        return settled._replace(pods=changed)

    def knows(self, key: str, uid: str = "") -> bool:
        """Whether the labels of this Pod are known, or no policy can select it. Another `uid` is another Pod."""
        return self._known(key, uid) is not None or not self.compiler.may_select_in(key.partition("/")[0])

    def tell(self, pod: Pod) -> None:
        """Use this Pod of this Node until the watch delivers it."""
        self._is_settled = False
        self._asked[pod.key] = pod
        self._set_pod(pod.key)

    def expect(self, key: str, uid: str) -> None:
        """The container runtime adds the Pod with this uid. Do not use what is known of another Pod of its name.

        Empty: it does not say which one, as for CNI CHECK, and what it said before still holds.
        """
        if uid and uid != self._uids.get(key):
            self._is_settled = False
            self._uids[key] = uid
            self._set_pod(key)

    def _compile(self) -> None:
        settled = self._compiled.settle()
        self._unreturned = SettledKeys(*(before | now for before, now in zip(self._unreturned, settled, strict=True)))

    def _follow_attached(self, pods: Mapping[str, AttachedPod]) -> frozenset[str]:
        """Returns the Pods that have got a port or another address."""
        before, self._pods, self._attached = self._attached, pods, {}
        for pod in pods.values():  # a Pod may have two ports for a moment, while its sandbox is replaced
            self._attached[pod.key] = (*self._attached.get(pod.key, ()), *pod.addresses)
        for key in before.keys() - self._attached.keys():
            self._asked.pop(key, None)
            self._uids.pop(key, None)
        changed = {key for key in before.keys() | self._attached.keys() if before.get(key) != self._attached.get(key)}
        for key in changed:
            self._set_pod(key)
        return frozenset(changed & self._attached.keys())

    def _forget_outdated(self, key: str, before: Pod | None) -> None:
        """The watch has delivered something about this Pod, maybe about an earlier one of the same name."""
        pod, asked = self.cluster.pods.get(key), self._asked.get(key)
        if asked is not None and _is_up_to(asked, before, pod):
            del self._asked[key]
        if pod is None and key not in self._attached:
            self._uids.pop(key, None)

    def _is_known(self, key: str) -> bool:
        """An unknown Pod is allowed nothing, because a policy might select it."""
        namespace = key.partition("/")[0]
        if self.compiler.lacks_labels_of(namespace):
            return False
        return self.compiler.is_local(key) or not self.compiler.may_select_in(namespace)

    def _known(self, key: str, uid: str) -> Pod | None:
        for pod in (self._asked.get(key), self.cluster.pods.get(key)):
            if pod is not None and pod.has_uid(uid):
                return pod
        return None

    # --- one object -------------------------------------------------------------------------------------------------

    def _set_node(self, name: str) -> None:
        node = self.cluster.nodes.get(name)
        held = self._own_addresses if name == self._node else ()
        self.compiler.set_node(name, peer_node(node, held) if node else None)

    def _set_pod(self, key: str) -> None:
        own, attached = self._known(key, self._uids.get(key, "")), self._attached.get(key)
        if own is not None:
            is_here = bool(own.spec and own.spec.node_name == self._node)
            # A Pod of this Node has the addresses of its port: its status may have some that another Pod has now.
            addresses = attached or () if is_here else attached
            self.compiler.set_pod(key, selectable_pod(own, addresses), local=is_here or attached is not None)
        else:
            peer = self.cluster.peer_pods.get(key)
            self.compiler.set_pod(key, selectable_pod(peer) if peer else None, local=False)

    def _set_network_policy(self, key: str) -> None:
        policy = self.cluster.network_policies.get(key)
        read, problems = read_network_policy(policy) if policy else (None, [])
        self.compiler.set_policy(f"NetworkPolicy {key}", read)
        self._report(f"NetworkPolicy {key}", policy, problems)

    def _set_cluster_network_policy(self, key: str) -> None:
        policy = self.cluster.cluster_network_policies.get(key)
        read, problems = read_cluster_network_policy(policy) if policy else (None, [])
        self.compiler.set_policy(f"ClusterNetworkPolicy {key}", read)
        self._report(f"ClusterNetworkPolicy {key}", policy, problems)

    def _report(self, name: str, policy: NetworkPolicy | ClusterNetworkPolicy | None, sentences: Iterable[str]) -> None:
        found = tuple(Problem.of(policy, sentence) for sentence in sentences) if policy else ()
        if found != self._problems.get(name, ()):
            self._problems[name] = found
            self._listed = None
        if not found:
            self._problems.pop(name, None)


def _is_up_to(asked: Pod, before: Pod | None, now: Pod | None) -> bool:
    """Whether the watch has delivered the Pod that was asked for, or a later one. `before`: what it had until now."""
    if any(pod is not None and pod.metadata.uid == asked.metadata.uid for pod in (before, now)):
        return True
    created, now_created = asked.metadata.creation_timestamp, now.metadata.creation_timestamp if now else None
    return created is not None and now_created is not None and now_created > created


def _in_slices(read: Callable[[str], None], keys: Iterable[str], size: int) -> Generator[None, None, None]:
    for number, key in enumerate(sorted(keys), start=1):  # probably the order in memory, which is faster
        read(key)
        if not number % size:
            yield
