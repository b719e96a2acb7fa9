"""`windlass policy`: the explanation of one Pod, and the comparison of two states."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from policy_commands import documents, network_policy, run

import shown_commands
from policy_worlds import worlds
from shown_commands import ROOT, WITH_OUTPUT
from windlass.cluster.policy_objects import LabelSelector
from windlass.lab.scenarios import policy_manifests
from windlass.lab.scenarios.scenario_files import ScenarioError
from windlass.model.port_sets import PortSet
from windlass.policy.connectivity import Connectivity, allowed_ports
from windlass.policy.explanations import OWN_NODE, PeerGroup, compare, explain
from windlass.policy.worlds import PolicyPod, PolicyWorld

EXAMPLES = ROOT / "docs" / "examples"
SHOP, CHANGED = EXAMPLES / "shop", EXAMPLES / "shop-change"


def test_a_pod_is_explained_with_the_rules_that_decide():
    explained = explain(Connectivity(policy_manifests.read_path(SHOP).world), "shop/web")
    found = {
        (name, one.traffic): (one.verdict, one.rules)
        for row in explained.ingress.peers
        for name in (*row.peers.pods, *row.peers.nodes, *row.peers.networks)
        for one in row.verdicts
    }
    denied = ("no ingress rule of NetworkPolicy shop/web allows it",)
    metrics = "ClusterNetworkPolicy metrics ingress[0] (from-the-platform-team)"
    assert found["shop/db", "TCP 8080"] == ("Allow", ("NetworkPolicy shop/web ingress[0]",))
    assert found["shop/db", "everything else"] == ("Deny", denied)
    assert found["monitoring/prometheus", "TCP 9090"] == ("Allow", (metrics,))
    assert found["203.0.113.0/24", "all traffic"] == ("Deny", denied)
    assert found[OWN_NODE, "all traffic"][0] == "Allow"
    assert found["shop/cart", "TCP 8080"] == ("Deny", ("no egress rule of NetworkPolicy shop/cart allows it",))


def test_pods_that_are_treated_alike_share_a_row():
    many = Connectivity(policy_manifests.read_documents(documents(network_policy(ingress=[{}]), pods=40)).world)
    [row] = [row for row in explain(many, "default/p0").egress.peers if row.peers.pods]
    assert len(row.peers.pods) == 39


def test_a_pod_is_listed_with_its_family_if_only_one_family_is_affected():
    block = {"from": [{"ipBlock": {"cidr": "fd00::/8"}}]}
    explained = explain(
        Connectivity(policy_manifests.read_documents(documents(network_policy(ingress=[block]))).world), "default/p0"
    )
    verdicts = {row.peers.pods: row.verdicts[0].verdict for row in explained.ingress.peers if row.peers.pods}
    assert verdicts == {("default/p1 (IPv6)",): "Allow", ("default/p1 (IPv4)",): "Deny"}


def test_a_denial_of_a_pods_access_to_itself_is_listed():
    deny = {
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {
            "tier": "Admin",
            "priority": 1,
            "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        },
    }
    explained = explain(Connectivity(policy_manifests.read_documents(documents(deny)).world), "default/p0")
    assert PeerGroup(pods=("default/p1", "itself, through a Service")) in [row.peers for row in explained.ingress.peers]


def test_a_difference_lists_added_and_removed_traffic_with_the_rules():
    difference = compare(*(Connectivity(policy_manifests.read_path(path).world) for path in (SHOP, CHANGED)))
    added, removed = difference.changes
    assert (added.change, added.source.pods, added.destination.pods) == ("Added", ("shop/web",), ("shop/cart",))
    assert added.traffic == "everything except TCP 8080"
    assert removed.destination == PeerGroup(pods=("shop/db",))
    assert removed.source.pods == ("monitoring/prometheus", "shop/web")
    assert removed.rules_now == ("no ingress rule of NetworkPolicy shop/db allows it",)


@given(worlds)
def test_a_state_does_not_differ_from_itself(world: PolicyWorld):
    assert not compare(Connectivity(world), Connectivity(world))


@given(worlds, worlds)
def test_a_difference_lists_exactly_the_pairs_whose_verdicts_differ(old: PolicyWorld, new: PolicyWorld):
    """For two states with the same Pods: it lists a pair of Pods if and only if the pair's verdicts differ."""
    new = replace(new, pods=old.pods, nodes=old.nodes)
    before, now = Connectivity(old), Connectivity(new)
    said = {
        (source, destination)
        for change in compare(before, now).changes
        for source in change.source.pods
        for destination in change.destination.pods
    }
    for source in old.pods:
        for destination in old.pods:
            if source is not destination:
                names = [f"{one.namespace}/{one.name}" for one in (source, destination)]
                is_said = any((names[0] + a, names[1] + b) in said for a in FAMILIES for b in FAMILIES)
                assert is_said == _differs(before, now, source, destination), names


FAMILIES = ("", " (IPv4)", " (IPv6)")


def _differs(before: Connectivity, now: Connectivity, source: PolicyPod, destination: PolicyPod) -> bool:
    """In any family."""

    def allowed(connectivity: Connectivity) -> list[PortSet]:
        pairs = zip(source.addresses, destination.addresses, strict=True)
        ends = ((connectivity.end_at(one), connectivity.end_at(other)) for one, other in pairs)
        return [allowed_ports(connectivity.between(*pair)) for pair in ends]

    return allowed(before) != allowed(now)


def test_pods_that_exist_in_one_state_only_are_listed():
    one, two = (Connectivity(policy_manifests.read_documents(documents(pods=count)).world) for count in (1, 2))
    assert compare(one, two).added_pods == ("default/p1",)
    assert compare(two, one).removed_pods == ("default/p1",)


def test_workloads_count_as_pods():
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"ports": [{"containerPort": 80}]}]}}
    cron = {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}
    web = {"kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": template}}
    world = policy_manifests.read_documents([web, cron]).world
    assert [(pod.namespace, pod.name, pod.labels) for pod in world.pods] == [
        ("shop", "web", {"app": "web"}),
        ("default", "c", {"app": "web"}),
    ]


def test_objects_of_other_api_groups_are_ignored():
    """Calico and Antrea have policies of the same kinds, with other fields."""
    calico = {**network_policy(selector="app == 'web'"), "apiVersion": "projectcalico.org/v3"}
    antrea = {
        "apiVersion": "crd.antrea.io/v1beta1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "policy"},
        "spec": {"priority": 5, "tier": "securityops", "appliedTo": [{"podSelector": {}}], "ingress": [{}]},
    }
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "job"}}
    own = {**network_policy(), "apiVersion": "networking.k8s.io/v1"}
    world = policy_manifests.read_documents([own, calico, antrea, volcano]).world
    assert [policy.spec.pod_selector for policy in world.network_policies] == [LabelSelector()]
    assert (world.cluster_network_policies, world.pods) == ((), ())


def test_named_ports_of_sidecars_count_and_those_of_other_init_containers_do_not():
    sidecar = {"name": "proxy", "restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 15001}]}
    ended = {"name": "setup", "ports": [{"name": "mesh", "containerPort": 9000}]}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"initContainers": [sidecar, ended]}}
    assert policy_manifests.read_documents([pod]).world.pods[0].named_ports == (("mesh", "TCP", 15001),)


def test_the_old_field_of_a_pods_address_is_read():
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "status": {"podIP": "10.1.0.2"}}
    assert policy_manifests.read_documents([pod]).world.pods[0].addresses == (ip_address("10.1.0.2"),)


def test_ended_and_host_network_pods_are_left_out():
    ended, host = (
        {"kind": "Pod", "metadata": {"name": name}, "spec": {"hostNetwork": name == "host"}, "status": {"phase": phase}}
        for name, phase in (("ended", "Succeeded"), ("host", "Running"))
    )
    assert policy_manifests.read_documents([ended, host]).world.pods == ()


def test_a_malformed_policy_is_named_with_its_field():
    with pytest.raises(ScenarioError, match=r"NetworkPolicy default/policy, spec.podSelector: expected"):
        policy_manifests.read_documents([network_policy(podSelector=3)])


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_and_json():
    text = run("explain", "shop/web", SHOP)
    assert text.exit_code == 0
    assert "ClusterNetworkPolicy metrics ingress[0]" in text.output
    peer = run("explain", "shop/web", SHOP, "--peer", "203.0.113.9", "--json")
    [row] = json.loads(peer.output)["ingress"]["peers"]
    assert (row["peers"], row["verdicts"][0]["verdict"]) == ({"networks": ["203.0.113.9"]}, "Deny")


@pytest.mark.parametrize("command", WITH_OUTPUT)
def test_the_page_shows_what_the_command_prints(command: str):
    assert f"$ {command}\n{shown_commands.run(command, expected=(0, 1))}```" in (ROOT / "docs/policy.md").read_text()


def test_diff_exits_with_1_if_there_is_a_difference(tmp_path):
    assert run("diff", SHOP, SHOP).exit_code == 0
    different = run("diff", SHOP, CHANGED, "--json")
    assert different.exit_code == 1
    assert {one["change"] for one in json.loads(different.output)["changes"]} == {"Added", "Removed"}
    shutil.copytree(SHOP, tmp_path / "broken")
    (tmp_path / "broken" / "policies.yaml").write_text("kind: [")
    broken = run("diff", SHOP, tmp_path / "broken")
    assert (broken.exit_code, "policies.yaml: line" in broken.output) == (2, True)


def test_manifests_are_read_from_standard_input():
    text = "".join(f"---\n{file.read_text()}" for file in sorted(SHOP.iterdir()))
    assert run("explain", "shop/web", "-", input=text).output == run("explain", "shop/web", SHOP).output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["explain", "web", SHOP],
            "there is no Pod default/web with an address of its own; known: monitoring/prometheus",
        ),
        (
            ["explain", "shop/web", SHOP, "--peer", "node-9"],
            "--peer node-9: neither a Pod nor a Node nor an IP address",
        ),
        (["explain", "shop/web", "/no/where"], "/no/where: no such file or directory"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(arguments, sentence):
    answer = run(*arguments)
    assert (answer.exit_code, sentence in answer.output) == (2, True), answer.output


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ({"kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDRs": ["ten"]}}, "Node n, 'ten' does not appear"),
        (
            {
                "kind": "Node",
                "metadata": {"name": "n"},
                "status": {"addresses": [{"type": "InternalIP", "address": "ten"}]},
            },
            "Node n, 'ten' does not appear",
        ),
        (
            {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"metadata": ["d"]}}},
            "Deployment default/d, metadata: expected an object, got a list",
        ),
        ({"kind": "List", "items": 3}, "has a List whose items are no list"),
    ],
)
def test_malformed_manifests_are_answered_with_a_sentence(tmp_path, manifest, sentence):
    file = tmp_path / "all.yaml"
    file.write_text(json.dumps(manifest))
    for answer in (run("explain", "p0", file), run("diff", file, file)):
        assert (answer.exit_code, sentence in answer.output) == (2, True), answer.output


def test_a_file_that_contains_itself_is_answered_with_a_sentence(tmp_path):
    file = tmp_path / "all.yaml"
    file.write_text("&all\nkind: List\nitems: [*all]\n")
    answer = run("explain", "p0", file)
    assert (answer.exit_code, "all.yaml: is nested too deeply" in answer.output) == (2, True), answer.output


def test_a_file_that_cannot_be_opened_is_answered_with_a_sentence():
    answer = run("explain", "p0", "p" * 300)
    assert (answer.exit_code, "File name too long" in answer.output) == (2, True), answer.output


def test_unreadable_parts_of_policies_are_reported_with_the_answer(tmp_path):
    file = tmp_path / "all.yaml"
    policy = network_policy(ingress=[{"ports": [{"port": 80, "endPort": 79}]}])
    file.write_text("".join(f"---\n{json.dumps(one)}\n" for one in documents(policy)))
    answer = run("explain", "p0", file)
    assert answer.exit_code == 0
    assert "NetworkPolicy default/policy, ingress[0], port 0: 80 to 79 is not a range of ports" in answer.stderr


def test_a_thousand_pods_with_few_kinds_of_labels_are_compared_quickly():
    """Work grows with the number of different Pods, not of pairs of Pods."""
    labels = [{"app": f"app-{number % 20}"} for number in range(1000)]
    pods = tuple(
        PolicyPod(f"ns-{number % 5}", f"pod-{number}", "n", (ip_address("10.1.0.0") + number,), labels[number])
        for number in range(1000)
    )
    policy = network_policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "app-3"}}}]}])
    world = policy_manifests.read_documents([{**policy, "metadata": {"name": "policy", "namespace": "ns-1"}}]).world
    before = Connectivity(replace(world, pods=pods, network_policies=()))
    now = Connectivity(replace(world, pods=pods))
    [change] = compare(before, now).changes
    assert len(change.destination.pods) == 200
    assert len(now._judged) < 20
