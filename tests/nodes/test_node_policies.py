"""The policies of a Node's Pods follow the cluster: which Pods, peers and namespaces, and what is not known yet."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import msgspec
import pytest

from windlass.cluster.clusters import Cluster, decode, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import APIObject, Metadata, PeerPod, Pod, PodIP, PodStatus
from windlass.model.families import Family
from windlass.model.nodes import AttachedPod, LocalNode, OperatingSystem, TrafficMode, TunnelType
from windlass.model.policies import DENY_UNTIL_KNOWN
from windlass.model.prefixes import prefix_of
from windlass.model.services import Protocol
from windlass.nodes.policies import FollowedPolicies
from windlass.nodes.policy_peers import selectable_pod
from windlass.nodes.states import run_to_end

NODE = LocalNode(
    name="node-1",
    mode=TrafficMode.ENCAP,
    tunnel=TunnelType.GENEVE,
    os=OperatingSystem.LINUX,
    addresses={Family.IPV4: ip_interface("192.168.0.1/24")},
    pod_cidrs={Family.IPV4: ip_network("10.1.0.0/24")},
    uplink_mac="02:00:00:00:00:01",
)
CLIENTS = {"podSelector": {"matchLabels": {"app": "client"}}}


def pod(name: str, address: str = "", node: str = "node-1", **metadata: object) -> Pod:
    status = {"podIPs": [{"ip": address}]} if address else {}
    return decoded("v1", "Pod", {"name": name, "namespace": "shop", **metadata}, spec={"nodeName": node}, status=status)


def policy(*, egress: tuple[object, ...] = (), ingress: tuple[object, ...] = (), namespace: str = "shop") -> APIObject:
    spec = {"podSelector": {}, "ingress": ingress, "egress": egress, "policyTypes": ["Ingress", "Egress"]}
    return decoded("networking.k8s.io/v1", "NetworkPolicy", {"name": "p", "namespace": namespace}, spec=spec)


def decoded(version: str, kind: str, metadata: object, **fields: object):
    return decode({"apiVersion": version, "kind": kind, "metadata": metadata, **fields})


def cluster_of(*objects: APIObject) -> Cluster:
    members = kinds_of(Cluster).items()
    return with_objects(Cluster(), {m: {o.key: o for o in objects if type(o) is kind.struct} for m, kind in members})


def attached(name: str, address: str) -> AttachedPod:
    return AttachedPod("shop", name, f"id-{name}", name, 10, "0a:58:00:00:00:01", (ip_address(address),))


class Followed:
    def __init__(self, *, awaits_namespaces: bool = False) -> None:
        self.followed = FollowedPolicies("node-1", awaits_namespaces=awaits_namespaces)
        self.pods: dict[str, AttachedPod] = {}

    def tell(self, *objects: APIObject) -> None:
        run_to_end(self.followed.following(cluster_of(*objects)))
        self.settle()

    def attach(self, *pods: AttachedPod) -> None:
        self.pods = {one.container_id: one for one in pods}
        self.settle()

    def settle(self) -> None:
        self.followed.settle(NODE, self.pods)

    @property
    def policies(self):
        return self.followed.policies

    def allows(self, server: str, client: str) -> bool:
        return bool(self.followed.compiler.ingress.allowed(server, ip_address(client)))


def test_an_attached_pod_of_which_the_cluster_says_nothing_is_denied_where_a_policy_might_select_it():
    node = Followed()
    node.attach(attached("web", "10.1.0.2"))
    assert not node.policies.pods, "no policy: nothing is denied"
    node.tell(policy(namespace="other"))
    assert not node.policies.pods, "no policy of its namespace"
    node.tell(policy())
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}
    node.tell(policy(), pod("web"))
    assert node.policies.pods["shop/web"] != DENY_UNTIL_KNOWN
    assert node.policies.pods["shop/web"].ingress is not None


def test_a_pod_that_was_asked_for_has_its_policies_until_the_cluster_tells_of_it():
    node = Followed()
    allowing = policy(ingress=({"from": [CLIENTS]},))
    node.tell(allowing)
    node.attach(attached("web", "10.1.0.2"))
    assert not node.followed.knows("shop/web")
    node.followed.tell(pod("web", uid="1"))
    node.settle()
    assert node.followed.knows("shop/web", "1")
    assert not node.followed.knows("shop/web", "2"), "another Pod of the same name"
    assert node.policies.pods["shop/web"] != DENY_UNTIL_KNOWN
    node.tell(allowing, pod("web", uid="1"))
    node.tell(allowing)
    assert node.policies.pods["shop/web"] == DENY_UNTIL_KNOWN, "the cluster told that it is gone"


def test_a_pod_whose_namespace_is_not_known_yet_is_denied_if_a_policy_selects_namespaces_by_their_labels():
    node, complete = Followed(awaits_namespaces=True), Followed()
    web = pod("web", "10.1.0.2")
    node.attach(attached("web", "10.1.0.2"))
    labelled, named = (deny_in({"env": "prod"}), deny_in({"kubernetes.io/metadata.name": "other"}))
    node.tell(web, named)
    assert not node.policies.pods, "the name of its namespace is known"
    node.tell(web, labelled)
    assert node.policies.pods == {"shop/web": DENY_UNTIL_KNOWN}
    complete.tell(web, labelled)
    complete.attach(attached("web", "10.1.0.2"))
    assert not complete.policies.pods, "manifests need not declare namespaces"
    node.tell(web, labelled, decoded("v1", "Namespace", {"name": "shop", "labels": {"env": "test"}}))
    assert not node.policies.pods


def deny_in(namespaces: dict[str, str]) -> APIObject:
    rule = {"name": "all", "action": "Deny", "from": [{"namespaces": {}}]}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {"matchLabels": namespaces}}, "ingress": [rule]}
    return decoded("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", {"name": "deny"}, spec=spec)


def test_an_address_belongs_to_the_newest_pod_that_has_not_ended():
    node = Followed()
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    old = pod("old", "10.2.0.9", "node-2", labels={"app": "client"}, creationTimestamp="2026-01-01T00:00:00Z")
    node.tell(allowing, web, old)
    assert node.allows("shop/web", "10.2.0.9")
    new = pod("new", "10.2.0.9", "node-2", labels={"app": "other"}, creationTimestamp="2026-01-02T00:00:00Z")
    node.tell(allowing, web, old, new)
    assert not node.allows("shop/web", "10.2.0.9")
    ended = PodStatus(phase="Succeeded", pod_ips=(PodIP("10.2.0.9"),))
    node.tell(allowing, web, old, Pod(new.metadata, new.spec, ended))
    assert node.allows("shop/web", "10.2.0.9")


def test_pods_that_come_back_to_a_namespace_without_an_object_meet_the_policies_that_came_in_between():
    node = Followed()
    web, far = pod("web", "10.1.0.2"), pod("far", "10.2.0.9", "node-2", namespace="dev")
    allowing = policy(ingress=({"from": [{"namespaceSelector": {}}]},))
    not_shop = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["shop"]}
    rule = {"action": "Deny", "from": [{"namespaces": {"matchExpressions": [not_shop]}}]}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": [rule]}
    denying = decoded("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", {"name": "deny"}, spec=spec)
    node.tell(web, allowing, far)
    assert node.allows("shop/web", "10.2.0.9")
    node.tell(web, allowing)
    node.tell(web, allowing, denying)
    node.tell(web, allowing, denying, far)
    assert not node.allows("shop/web", "10.2.0.9")


@pytest.mark.parametrize("kind", [Pod, PeerPod])
def test_named_ports_of_sidecars_count_and_those_of_other_init_containers_do_not(kind: type[Pod | PeerPod]):
    init_containers = [
        {"restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 15001}]},
        {"ports": [{"name": "http", "containerPort": 9000}]},
    ]
    spec = {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}], "initContainers": init_containers}
    document = {"kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    read = selectable_pod(msgspec.convert(document, kind))
    assert read is not None
    assert read.named_ports == (("http", Protocol.TCP, 8080), ("mesh", Protocol.TCP, 15001))


def test_a_pod_with_only_the_old_field_of_its_address_is_a_peer():
    far = decoded("v1", "Pod", {"name": "far", "labels": {"app": "client"}}, status={"podIP": "10.2.0.9"})
    read = selectable_pod(far)
    assert read is not None
    assert read.addresses == (prefix_of(ip_address("10.2.0.9")),)


def test_pods_of_other_nodes_are_peers():
    node = Followed()
    status = PodStatus(pod_ips=(PodIP("10.2.0.9"),))
    peer = PeerPod(Metadata("far", "shop", {"app": "client"}), None, status)
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    node.tell(allowing, web)
    assert not node.allows("shop/web", "10.2.0.9")
    node.tell(allowing, web, peer)
    assert node.allows("shop/web", "10.2.0.9")
    node.tell(allowing, web)
    assert not node.allows("shop/web", "10.2.0.9")


@pytest.mark.parametrize(
    ("rules", "namespaces"),
    [
        ({}, set()),
        ({"ingress": ({"from": [CLIENTS]},)}, {"shop"}),
        ({"ingress": ({"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]},)}, {"one", "two"}),
        (
            {"egress": ({"to": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}, CLIENTS]},)},
            {"one", "two", "shop"},
        ),
        ({"ingress": ({"from": [{"namespaceSelector": {}}]},)}, None),
        ({"ingress": ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},)}, set()),
        ({"ingress": ({"ports": [{"port": "http"}]},)}, set()),
        ({"egress": ({"to": [CLIENTS], "ports": [{"port": "http"}]},)}, {"shop"}),
        ({"egress": ({"ports": [{"port": "http"}]},)}, None),
        ({"egress": ({"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": "http"}]},)}, None),
    ],
)
def test_pods_of_other_nodes_are_needed_only_where_policies_of_local_pods_mean_them(rules, namespaces):
    labelled = [
        decoded("v1", "Namespace", {"name": name, "labels": {"team": team}})
        for name, team in (("one", "a"), ("two", "a"), ("three", "b"))
    ]
    node = Followed()
    node.tell(policy(**rules), *labelled)
    assert node.followed.namespaces == set(), "no Pod here has policies"
    node.tell(policy(**rules), *labelled, pod("web", "10.1.0.2"))
    assert node.followed.namespaces == namespaces
    node.tell(*labelled, pod("web", "10.1.0.2"))
    assert node.followed.namespaces == set()


def test_a_namespace_that_gets_a_label_is_needed_from_then_on():
    node = Followed()
    meant = policy(ingress=({"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]},)), pod("web")
    node.tell(*meant, decoded("v1", "Namespace", {"name": "one"}))
    assert node.followed.namespaces == set()
    node.tell(*meant, decoded("v1", "Namespace", {"name": "one", "labels": {"team": "a"}}))
    assert node.followed.namespaces == {"one"}
    node.tell(*meant)
    assert node.followed.namespaces == set()


def test_what_changes_is_told_once():
    node = FollowedPolicies("node-1")
    cluster = cluster_of(policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2", labels={"app": "client"}))
    run_to_end(node.following(cluster))
    assert node.namespaces == {"shop"}
    pods = {"id-web": attached("web", "10.1.0.2")}
    first = node.settle(NODE, pods)
    assert (set(first.pods), len(first.subjects), set(first.peers)) == ({"shop/web"}, 2, {"10.1.0.2/32"})
    run_to_end(node.following(replace(cluster)))
    assert not any(node.settle(NODE, pods))


def test_open_connections_are_reviewed_after_changes_of_policies_and_labels_and_not_for_each_pod():
    node = Followed()
    client = pod("client", "10.2.0.9", "node-2", labels={"app": "client"})
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    starting = pod("client", "", "node-2", labels={"app": "client"})
    relabelled = pod("client", "10.2.0.9", "node-2", labels={"app": "other"})
    node.attach(attached("web", "10.1.0.2"))

    def is_reviewed_after(*objects: APIObject) -> bool:
        node.tell(*objects)
        due, node.followed.review_is_due = node.followed.review_is_due, False
        return due

    assert is_reviewed_after(web), "a start: the policies of an earlier agent may be gone"
    assert not is_reviewed_after(web), "no policies"
    assert is_reviewed_after(web, allowing), "a policy"
    assert not is_reviewed_after(web, allowing, starting), "a Pod that has no address yet"
    assert not is_reviewed_after(web, allowing, client), "its address"
    assert is_reviewed_after(web, allowing, relabelled), "other labels"
    assert is_reviewed_after(web, allowing, client), "its labels again"
    assert not is_reviewed_after(web, allowing), "a Pod that is gone"
    assert is_reviewed_after(web), "no policy any more"


def test_open_connections_are_reviewed_when_a_pod_with_policies_gets_its_address():
    """They may be those of an earlier Pod with this address."""
    node = Followed()

    def is_reviewed_after_it_comes(*objects: APIObject) -> bool:
        node.attach()
        node.tell(pod("web", "10.1.0.2"), *objects)
        node.followed.review_is_due = False
        node.attach(attached("web", "10.1.0.2"))
        return node.followed.review_is_due

    assert not is_reviewed_after_it_comes()
    assert is_reviewed_after_it_comes(policy())


def test_the_verdict_about_peers_is_removed_with_the_last_of_them():
    node = Followed()
    node.attach(attached("web", "10.1.0.2"))
    web, allowing = pod("web", "10.1.0.2"), policy(ingress=({"from": [CLIENTS]},))
    client = pod("client", "10.2.0.9", "node-2", labels={"app": "client"})

    def verdicts() -> int:
        return sum(len(subject.verdicts) for subject in node.followed.policies.subjects.values())

    node.tell(web, allowing)
    before = verdicts()
    node.tell(web, allowing, client)
    assert verdicts() == before + 1
    node.tell(web, allowing)
    assert verdicts() == before
