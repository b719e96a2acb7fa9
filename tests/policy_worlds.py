"""Random small worlds of Pods, Nodes and policies, in which every rule has a good chance to matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import msgspec
from hypothesis import strategies as st

from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.families import IPAddress
from windlass.model.prefixes import prefix_of
from windlass.model.services import Protocol
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.directories import PeerNode, SelectablePod
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.policy.worlds import PolicyNode, PolicyPod, PolicyWorld

NAMESPACES = ("x", "y", "z")
LABELS = (("app", "web"), ("app", "db"), ("tier", "front"), ("tier", "back"))
PORTS = (79, 80, 81, 82, 443)
NETWORKS = (
    "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.0.0/30", "10.1.0.4/32", "192.168.0.0/24", "192.168.0.1/32",
    "203.0.113.0/24", "203.0.113.8/29", "::/0", "fd00::/8", "fd00:1::/64", "2001:db8::/32",
)  # fmt: skip
OUTSIDE = tuple(map(ip_address, ("203.0.113.9", "203.0.113.1", "10.200.0.1", "198.51.100.1", "2001:db8::1", "2002::1")))
OWN_NODE = "node-1"

labels = st.dictionaries(
    *(st.sampled_from([*dict.fromkeys(column)]) for column in zip(*LABELS, strict=True)), max_size=2
)
ports = st.sampled_from(PORTS)
names = st.sampled_from(["http", "http", "dns", "absent"])
protocols = st.sampled_from(["TCP", "UDP", "SCTP"])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of the API: what is None is left out."""
    return st.fixed_dictionaries(strategies).map(
        lambda one: {k.rstrip("_"): v for k, v in one.items() if v is not None}
    )


label_keys = st.sampled_from(["app", "tier", "kubernetes.io/metadata.name"])
label_values = st.sampled_from(["web", "db", "front", "back", *NAMESPACES])
requirements = (
    fields(
        key=label_keys,
        operator=st.sampled_from(["In", "In", "NotIn"]),
        values=st.lists(label_values, min_size=1, max_size=2),
    )
    | fields(key=label_keys, operator=st.sampled_from(["Exists", "DoesNotExist"]))
    | fields(  # often unreadable
        key=label_keys,
        operator=st.sampled_from(["In", "NotIn", "Exists", "Unheard"]),
        values=st.lists(label_values, max_size=1),
    )
)
selectors = st.just({}) | fields(matchLabels=maybe(labels), matchExpressions=maybe(st.lists(requirements, max_size=1)))
namespace_selectors = selectors | st.sampled_from(NAMESPACES).map(
    lambda name: {"matchLabels": {"kubernetes.io/metadata.name": name}}
)
cidrs = st.sampled_from((*NETWORKS, "10.1.0.0/33", "::ffff:10.1.0.0/112", "10.1.0.4"))
nested = st.sampled_from(
    [
        {"cidr": "0.0.0.0/0", "except": ["10.1.0.0/16", "203.0.113.8/29"]},
        {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/30"]},
        {"cidr": "203.0.113.0/24", "except": ["203.0.113.8/29"]},
        {"cidr": "10.1.0.0/30", "except": ["10.1.0.0/30"]},
        {"cidr": "::/0", "except": ["fd00:1::/64"]},
    ]
)
blocks = nested | fields(cidr=cidrs, except_=maybe(st.lists(cidrs, max_size=2)))
np_peers = (
    fields(podSelector=selectors)
    | fields(ipBlock=blocks)
    | fields(namespaceSelector=namespace_selectors, podSelector=maybe(selectors))
    | fields(ipBlock=blocks)
    | st.just({})
)
np_ports = fields(protocol=maybe(protocols), port=maybe(ports | names)) | fields(
    protocol=maybe(protocols), port=maybe(ports | names), endPort=st.sampled_from([78, 81, 90])
)
np_rules = {
    "ingress": fields(from_=maybe(st.lists(np_peers, max_size=2)), ports=maybe(st.lists(np_ports, max_size=2))),
    "egress": fields(to=maybe(st.lists(np_peers, max_size=2)), ports=maybe(st.lists(np_ports, max_size=2))),
}
network_policies = fields(
    namespace=st.sampled_from(NAMESPACES),
    spec=fields(
        podSelector=selectors,
        policyTypes=maybe(st.lists(st.sampled_from(["Ingress", "Egress"]), unique=True) | st.just(["Ingres"])),
        ingress=maybe(st.lists(np_rules["ingress"], min_size=1, max_size=2)),
        egress=maybe(st.lists(np_rules["egress"], min_size=1, max_size=2)),
    ),
)

cnp_pods = fields(namespaceSelector=maybe(namespace_selectors), podSelector=maybe(selectors))
cnp_ingress_peers = fields(namespaces=namespace_selectors) | fields(pods=cnp_pods) | st.just({})
cnp_egress_peers = (
    cnp_ingress_peers
    | fields(nodes=selectors)
    | fields(networks=st.lists(cidrs, max_size=2))
    | fields(domainNames=st.just(["example.org"]))
)
destination_ports = fields(number=ports) | fields(range=fields(start=st.sampled_from([80, 82]), end=st.just(81)))
cnp_protocols = st.sampled_from(["tcp", "udp", "sctp"]).flatmap(
    lambda name: fields(**{name: fields(destinationPort=destination_ports) | st.just({})})
) | fields(destinationNamedPort=names | st.just(""))


ACTIONS = ("Accept", "Deny", "Pass", "Accept", "Deny", "Pass", "Shrug")


def cnp_rules(
    peers_field: str, peers: st.SearchStrategy[Any], actions: Sequence[str] = ACTIONS
) -> st.SearchStrategy[dict[str, Any]]:
    return fields(
        action=st.sampled_from(actions),
        protocols=maybe(st.lists(cnp_protocols, max_size=2)),
        **{peers_field: st.lists(peers, min_size=1, max_size=2) | st.just([])},
    )


cluster_network_policies = fields(
    spec=fields(
        tier=st.sampled_from(["Admin", "Admin", "Baseline", "Baseline", "Middle"]),
        priority=st.sampled_from([0, 1, 2, 3, 0, 1, 2, 3, -1, 1001]),
        subject=fields(namespaces=namespace_selectors) | fields(pods=cnp_pods) | st.just({}),
        ingress=maybe(st.lists(cnp_rules("from_", cnp_ingress_peers), min_size=1, max_size=3)),
        egress=maybe(st.lists(cnp_rules("to", cnp_egress_peers), min_size=1, max_size=3)),
    )
)
peers_of_namespaces = fields(  # all Pods use its selector, which mostly requires no label by value
    spec=fields(
        tier=st.just("Admin"),
        subject=st.just({"namespaces": {}}),
        ingress=(requirements.map(lambda one: {"matchExpressions": [one]}) | namespace_selectors).map(
            lambda one: [{"action": "Deny", "from": [{"namespaces": one}]}]
        ),
    )
)
named_ports = st.lists(st.tuples(names, protocols, ports), min_size=1, max_size=3, unique_by=lambda port: port[:2]).map(
    tuple
)


def pod(number: int) -> st.SearchStrategy[PolicyPod]:
    addresses = IPv4Address("10.1.0.2") + number, IPv6Address("fd00:1::2") + number
    return st.builds(
        PolicyPod,
        namespace=st.sampled_from(NAMESPACES),
        name=st.just(f"pod-{number}"),
        node=st.just(OWN_NODE),
        addresses=st.just(addresses),
        labels=labels,
        named_ports=named_ports,
    )


def node(number: int) -> st.SearchStrategy[PolicyNode]:
    addresses = ip_address(f"192.168.0.{number}"), ip_address(f"2001:db8::{number}")
    return st.builds(PolicyNode, st.just(f"node-{number}"), st.just(addresses), labels)


def policies_of(kind: type[Any], documents: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    def named(number: int, document: dict[str, Any]) -> Any:
        metadata = {"name": f"policy-{number}", "namespace": document.get("namespace")}
        return msgspec.convert({"kind": kind.__name__, "metadata": metadata, "spec": document["spec"]}, kind)

    return st.lists(documents, max_size=most).map(lambda found: [named(i, one) for i, one in enumerate(found)])


# Pods may be in a namespace that has no Namespace object.
namespaces = st.fixed_dictionaries(
    {},
    optional={
        name: labels.map(lambda one, name=name: {"kubernetes.io/metadata.name": name, **one}) for name in NAMESPACES
    },
)
worlds = st.builds(
    PolicyWorld,
    pods=st.tuples(*map(pod, range(3))),
    namespaces=namespaces,
    nodes=st.tuples(node(1), node(2)),
    network_policies=policies_of(NetworkPolicy, network_policies, 3),
    cluster_network_policies=policies_of(ClusterNetworkPolicy, cluster_network_policies, 3),
)


@st.composite
def histories(draw: st.DrawFn, most: int) -> list[PolicyWorld]:
    """Each world differs from the one before in one kind of objects. A change must not depend on others beside it."""
    history = [draw(worlds)]
    for other in draw(st.lists(worlds, min_size=1, max_size=most - 1)):
        kind = draw(st.sampled_from(fields_of(PolicyWorld))).name
        history.append(replace(history[-1], **{kind: getattr(other, kind)}))
    return [with_a_remote_pod(world) for world in history]


@st.composite
def comings_and_goings(draw: st.DrawFn, changes: int) -> list[PolicyWorld]:
    """Objects of one world are removed and come back. What the compiler kept of them must not matter."""
    policies = draw(policies_of(ClusterNetworkPolicy, peers_of_namespaces, 4))
    whole = replace(draw(worlds), network_policies=(), cluster_network_policies=policies)
    history = [whole]
    for _ in range(changes):
        kind = draw(st.sampled_from(["pods", "namespaces", "cluster_network_policies"]))
        history.append(replace(history[-1], **{kind: draw(some_of(getattr(whole, kind)))}))
    return [with_a_remote_pod(world) for world in history]


def some_of(found: Any) -> st.SearchStrategy[Any]:
    if isinstance(found, dict):
        return some_of(list(found.items())).map(dict)
    choices = st.tuples(*(st.booleans() for _ in found))
    return choices.map(lambda chosen: [one for one, is_kept in zip(found, chosen, strict=True) if is_kept])


def with_a_remote_pod(world: PolicyWorld) -> PolicyWorld:
    return replace(world, pods=tuple(replace(pod, node="node-2") if pod.name == "pod-2" else pod for pod in world.pods))


# As the compiler takes them -------------------------------------------------------------------------------------------


def compiled(world: PolicyWorld, *, counts_rules: bool = False, awaits_namespaces: bool = False) -> PolicyCompiler:
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules, awaits_namespaces=awaits_namespaces)
    tell(compiler, PolicyWorld(), world)
    compiler.settle()
    return compiler


def tell(compiler: PolicyCompiler, before: PolicyWorld, after: PolicyWorld) -> None:
    """Tells the compiler what differs."""
    for name in before.namespaces.keys() | after.namespaces.keys():
        if before.namespaces.get(name) != after.namespaces.get(name):
            compiler.set_namespace(name, after.namespaces.get(name))
    for old, new in changed({n.name: n for n in before.nodes}, {n.name: n for n in after.nodes}):
        compiler.set_node((old or new).name, as_node(new))
    for old, new in changed({pod_key(p): p for p in before.pods}, {pod_key(p): p for p in after.pods}):
        compiler.set_pod(pod_key(old or new), as_pod(new), local=(old or new).node == OWN_NODE)
    for old, new in changed(all_policies(before), all_policies(after)):
        compiler.set_policy(f"{type(old or new).__name__} {(old or new).key}", read(new) if new else None)


def changed(before: dict, after: dict) -> Iterator[tuple]:
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield before.get(key), after.get(key)


def all_policies(world: PolicyWorld) -> dict[str, NetworkPolicy | ClusterNetworkPolicy]:
    found = (*world.network_policies, *world.cluster_network_policies)
    return {f"{type(policy).__name__} {policy.key}": policy for policy in found}


def read(policy: NetworkPolicy | ClusterNetworkPolicy):
    if isinstance(policy, NetworkPolicy):
        return read_network_policy(policy)[0]
    return read_cluster_network_policy(policy)[0]


def machine_addresses(world: PolicyWorld) -> Iterator[IPAddress]:
    for pod in world.pods:
        yield from pod.addresses
    for node in world.nodes:
        yield from node.addresses


def pod_key(pod: PolicyPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def as_pod(pod: PolicyPod | None) -> SelectablePod | None:
    if pod is None:
        return None
    named = tuple((name, Protocol[protocol], port) for name, protocol, port in pod.named_ports)
    addresses = tuple(map(prefix_of, pod.addresses))
    return SelectablePod(pod.namespace, pod.name, tuple(sorted(pod.labels.items())), addresses, named)


def as_node(node: PolicyNode | None) -> PeerNode | None:
    if node is None:
        return None
    return PeerNode(node.name, tuple(sorted(node.labels.items())), tuple(map(prefix_of, node.addresses)))
