"""How `windlass policy` reads manifests: what it accepts, what it leaves out, and what it says about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policy_commands import documents, network_policy, run, workload, written

CALICO = {**network_policy(selector="all()"), "apiVersion": "projectcalico.org/v3"}
ADMIN = {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy"}


def test_typed_lists_are_read():
    """`kubectl get --raw` prints items without kind and apiVersion."""
    pods = [{"metadata": {"name": name}} for name in ("a", "b")]
    policies = [{"metadata": {"name": "p"}, "spec": {"podSelector": {}}}]
    answer = run(
        "explain",
        "a",
        "-",
        input=written(
            {"kind": "PodList", "apiVersion": "v1", "items": pods},
            {"kind": "NetworkPolicyList", "apiVersion": "networking.k8s.io/v1", "items": policies},
        ),
    )
    assert answer.exit_code == 0, answer.output
    assert "selected by: NetworkPolicy default/p" in answer.output


def test_policies_that_are_not_enforced_are_counted():
    kinds = [
        *({**ADMIN, "metadata": {"name": name}} for name in ("a", "b")),
        {"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "c"}},
        {**network_policy(), "apiVersion": "extensions/v1beta1"},
        CALICO,
    ]
    answer = run("explain", "p0", "-", input=written(*documents(), *kinds))
    assert answer.stderr.splitlines() == [
        f"windlass policy explain: {line} left out: Windlass does not enforce this kind"
        for line in (
            "2 objects of kind AdminNetworkPolicy (policy.networking.k8s.io/v1alpha1) are",
            "1 CiliumNetworkPolicy (cilium.io/v2) is",
            "1 NetworkPolicy (extensions/v1beta1) is",
            "1 NetworkPolicy (projectcalico.org/v3) is",
        )
    ]
    assert answer.stdout == run("explain", "p0", "-", input=written(*documents())).stdout


def test_a_difference_reports_what_is_left_out_on_each_side(tmp_path):
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    wrong = network_policy(ingress=[{"ports": [{"port": 80, "endPort": 79}]}])
    old.write_text(written(*documents(wrong), CALICO))
    new.write_text(written(*documents(), {**ADMIN, "metadata": {"name": "a"}}, CALICO))
    lines = [line.removeprefix("windlass policy diff: ") for line in run("diff", old, new).stderr.splitlines()]
    assert [line.partition(",")[0].partition(" is ")[0] for line in lines] == [
        "1 NetworkPolicy (projectcalico.org/v3)",
        "OLD: NetworkPolicy default/policy",
        "NEW: 1 AdminNetworkPolicy (policy.networking.k8s.io/v1alpha1)",
    ]


@pytest.mark.parametrize("value", ["2024-13-45", "0x_"])
def test_an_invalid_date_or_number_is_answered_with_a_sentence(tmp_path: Path, value: str):
    file = tmp_path / "all.yaml"
    file.write_text(f"kind: Pod\nmetadata: {{name: a, annotations: {{d: {value}}}}}\n")
    answer = run("explain", "a", file)
    assert (answer.exit_code, "all.yaml: has an invalid date or number: " in answer.output) == (2, True), answer.output


def test_annotations_may_be_dates():
    assert (
        run("explain", "a", "-", input="{kind: Pod, metadata: {name: a, annotations: {d: 2024-12-01}}}").exit_code == 0
    )


def test_json_is_read_as_json():
    """`kubectl get -o json`, and the answer of the agent. YAML allows neither these escapes nor this character."""
    pod = {"kind": "Pod", "metadata": {"name": "a", "annotations": {"mood": "\N{ROCKET}"}}}
    for text in (json.dumps(pod), json.dumps(pod).replace("mood", "m\x7f")):
        assert run("explain", "a", "-", input=text).exit_code == 0


def test_null_fields_are_absent_fields():
    selected = network_policy(
        podSelector=None,
        ingress=[{"ports": None, "from": [{"podSelector": None, "namespaceSelector": {}, "ipBlock": None}]}],
        egress=None,
    )
    pod = {"kind": "Pod", "metadata": {"name": "a", "labels": None}, "spec": {"containers": [{"ports": None}]}}
    absent = network_policy(ingress=[{"from": [{"namespaceSelector": {}}]}])
    del absent["spec"]["podSelector"]
    answer = run("explain", "a", "-", input=written(pod, selected))
    assert answer.exit_code == 0, answer.output
    assert "selected by: NetworkPolicy default/policy" in answer.output
    assert answer.output == run("explain", "a", "-", input=written(pod, absent)).output


def test_a_label_that_is_null_is_refused():
    """Without it, the selector would match more Pods."""
    policy = network_policy(podSelector={"matchLabels": {"app": None}})
    answer = run("explain", "p0", "-", input=written(*documents(policy)))
    assert answer.exit_code == 2
    assert "standard input: NetworkPolicy default/policy, spec.podSelector.matchLabels[...]: expected" in answer.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Pod", "standard input: a Pod without metadata;"),
        ("{kind: Pod, metadata: {}}", "standard input: a Pod without a name;"),
        ("\x7fELF", "is not YAML: unacceptable character #x007f: control characters are not allowed"),
        ("kind: Pod\nmetadata: {name: {{ .Values.name }}}", "render templates first, for example with `helm template`"),
        ("&a\nkind: Pod\nmetadata: {name: a}\nspec: *a\n", "standard input: is nested too deeply"),
    ],
)
def test_malformed_text_is_answered_with_a_sentence(text: str, sentence: str):
    answer = run("explain", "a", "-", input=text)
    assert (answer.exit_code, sentence in answer.output) == (2, True), answer.output
    assert len(answer.output.splitlines()) == 1


def test_namespaces_without_labels_are_named_if_a_policy_selects_by_labels():
    pods = [{"kind": "Pod", "metadata": {"name": "p", "namespace": name}} for name in "abcde"]
    by_label = network_policy(ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}])
    by_label["metadata"]["namespace"] = "a"
    namespace = {"kind": "Namespace", "metadata": {"name": "b"}}
    answer = run("explain", "a/p", "-", input=written(*pods, namespace, by_label))
    assert answer.stderr == (
        "windlass policy explain: no Namespace object for a, c, d and 1 more: "
        "a namespaceSelector finds only the label kubernetes.io/metadata.name there\n"
    )
    by_name = json.loads(json.dumps(by_label).replace("team", "kubernetes.io/metadata.name"))
    assert run("explain", "a/p", "-", input=written(*pods, by_name)).stderr == ""


def test_the_labels_of_a_namespace_also_matter_for_cluster_network_policies():
    subject = {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {}}}
    policy = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "p"}, "spec": {"tier": "Admin", "subject": subject}}
    assert "no Namespace object for default:" in run("explain", "a", "-", input=written(workload("a"), policy)).stderr


BLOCK = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}
NETWORKS = {"tier": "Admin", "subject": {"namespaces": {}}, "egress": [{"to": [{"networks": ["10.0.0.0/8"]}]}]}
EVERYONE = {"ipBlock": {"cidr": "0.0.0.0/0"}}


@pytest.mark.parametrize(
    ("policy", "is_reported"),
    [
        (network_policy(ingress=[{"from": [BLOCK]}]), True),
        (network_policy(egress=[{"to": [BLOCK]}]), True),
        ({"kind": "ClusterNetworkPolicy", "metadata": {"name": "p"}, "spec": NETWORKS}, True),
        (network_policy(ingress=[{"from": [EVERYONE]}]), False),
    ],
)
def test_pods_without_addresses_are_named_if_a_rule_has_networks(policy: dict, is_reported: bool):
    """Usually the networks that a rule excepts from all addresses are those of Pods."""
    sentence = (
        "no address is known for default/a, default/b, default/c and 1 more: "
        "rules with networks may decide otherwise about their traffic"
    )
    pods = [{"kind": "Pod", "metadata": {"name": "p"}, "status": {"podIP": "10.1.0.2"}}, *map(workload, "abcd")]
    assert (sentence in run("explain", "a", "-", input=written(*pods, policy)).stderr) == is_reported
    assert "no address" not in run("explain", "p0", "-", input=written(*documents(policy))).stderr
