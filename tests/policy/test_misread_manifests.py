"""Manifests that do not mean what they seem to mean: `windlass policy` and `windlass render` say what they ignore."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from policy_commands import documents, network_policy, run, written

from windlass.cli.main import main
from windlass.lab.scenarios.unknown_fields import unknown_fields

POLICY = network_policy()
VERSION = "policy.networking.k8s.io/v1alpha2"
CLUSTER_POLICY = {
    "apiVersion": VERSION,
    "kind": "ClusterNetworkPolicy",
    "metadata": {"name": "platform"},
    "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}},
}


def with_spec(policy: dict, **spec: object) -> dict:
    return {**policy, "spec": {**policy["spec"], **spec}}


def rendered(folder: Path, *objects: dict) -> Result:
    made = [{"apiVersion": "v1", **one} for one in documents(*objects)]
    (folder / "all.yaml").write_text(written(*made).replace("192.168.0.1", "192.168.0.11"))  # .1 is the lab's router
    answer = CliRunner().invoke(main, ["render", str(folder / "all.yaml"), "--node", "n"])
    assert answer.exit_code == 0, answer.output
    return answer


REVERSED = "port 0: 80 to 79 is not a range of ports"
MALFORMED = "spec.ingress: expected a list, got an object"
PEER = {"podselector": {"matchLables": {"app": "a"}}, "ipBlock": {"cidr": "10.0.0.0/8", "excepts": []}}


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ({**POLICY, "ingress": []}, ["ingress"]),
        (with_spec(POLICY, ingres=None, policytypes=[]), ["spec.ingres", "spec.policytypes"]),
        (
            with_spec(POLICY, ingress=[{}, {"form": [], "port": 80}]),
            ["spec.ingress[1].form", "spec.ingress[1].port"],
        ),
        (
            with_spec(POLICY, egress=[{"to": [PEER]}]),
            ["spec.egress[0].to[0].podselector", "spec.egress[0].to[0].ipBlock.excepts"],
        ),
        (with_spec(POLICY, podSelector={"matchLables": {}}), ["spec.podSelector.matchLables"]),
        (
            with_spec(CLUSTER_POLICY, ingress=[{"to": [], "protocol": []}]),
            ["spec.ingress[0].to", "spec.ingress[0].protocol"],
        ),
        (with_spec(POLICY, podSelector={"matchLabels": {"anything": "a"}}), []),
        ({**POLICY, "metadata": {"name": "a", "label": {}}, "status": {"conditions": []}}, []),
        ({"kind": "Pod", "spec": {"anything": 1}}, []),
    ],
)
def test_fields_that_policies_do_not_have_are_found(policy: dict, fields: list[str]):
    assert [sentence.partition(": ")[0] for sentence in unknown_fields(policy)] == fields


def test_an_unknown_field_is_reported_with_the_field_that_was_meant(tmp_path: Path):
    wrong = with_spec(POLICY, ingress=[{"form": [{"podSelector": {}}]}, {"whatever": 1}])
    file = tmp_path / "all.yaml"
    file.write_text(written(*documents(wrong)))
    sentences = [
        f"all.yaml: NetworkPolicy default/policy, spec.ingress[{place}; it is ignored"
        for place in ("0].form: there is no such field (did you mean from?)", "1].whatever: there is no such field")
    ]
    for arguments in (["explain", "p0", file], ["diff", file, file]):
        answer = run(*arguments)
        assert answer.exit_code == 0
        assert answer.stderr.splitlines() == [f"windlass policy {arguments[0]}: {one}" for one in sentences]
    assert rendered(tmp_path, wrong).stderr.splitlines() == [f"windlass render: {one}" for one in sentences]


def test_render_reports_parts_of_policies_that_cannot_be_read(tmp_path: Path):
    parts = with_spec(POLICY, ingress=[{"ports": [{"port": 80, "endPort": 79}]}])
    whole = {**with_spec(POLICY, ingress={}), "metadata": {"name": "other"}}
    cluster = with_spec(CLUSTER_POLICY, tier="admin")
    assert rendered(tmp_path, parts, whole, cluster).stderr.splitlines() == [
        f"windlass render: {sentence}"
        for sentence in (
            f"NetworkPolicy default/policy, ingress[0], {REVERSED}; this port is not allowed",
            f"NetworkPolicy default/other, {MALFORMED}; it denies everything to the Pods that it selects",
            "ClusterNetworkPolicy platform, tier: admin is neither Admin nor Baseline; its rules deny everything",
        )
    ]


# --- policies that select nothing -------------------------------------------------------------------------------------


def named(name: str, **spec: object) -> dict:
    return {**with_spec(POLICY, **spec), "metadata": {"name": name, "namespace": "payments"}}


def test_policies_that_select_no_pod_are_named():
    one = run("explain", "p0", "-", input=written(*documents(named("p"))))
    assert one.stderr == (
        "windlass policy explain: NetworkPolicy payments/p selects no Pod of the manifests, "
        "so its effect is not shown\n"
    )
    host = {"kind": "Pod", "metadata": {"name": "h", "namespace": "payments"}, "spec": {"hostNetwork": True}}
    with_host = run("explain", "p0", "-", input=written(*documents(named("p")), host))
    assert "selects no Pod of the manifests with an address of its own, so" in with_host.stderr
    many = run("explain", "p0", "-", input=written(*documents(*map(named, "abcde"), POLICY)))
    names = "NetworkPolicy payments/a, NetworkPolicy payments/b, NetworkPolicy payments/c and 2 more"
    assert f"{names} select no Pod of the manifests, so their effect is not shown\n" in many.stderr


TYPO = with_spec(POLICY, podSelector={"matchLabels": {"app": "a9"}})
CLOSED = with_spec(POLICY, podSelector={"matchLabels": {"app": "a1"}})


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ([], [TYPO], 2),
        ([TYPO], [], 2),
        ([TYPO], [with_spec(TYPO, egress=[{}])], 2),
        ([TYPO], [TYPO], 0),
        ([TYPO], [CLOSED], 1),  # it selects a Pod on one side
        ([], [TYPO, {**CLOSED, "metadata": {"name": "other"}}], 1),
        ([], [CLUSTER_POLICY], 0),  # it selects Pods, and has no rules
    ],
)
def test_a_changed_policy_that_selects_no_pod_is_not_proven_to_be_without_effect(
    tmp_path: Path, old: list, new: list, status: int
):
    (tmp_path / "old.yaml").write_text(written(*documents(*old)))
    answer = run("diff", tmp_path / "old.yaml", "-", input=written(*documents(*new)))
    assert answer.exit_code == status, answer.output
    is_unproven = "nothing is proven about the change of NetworkPolicy default/policy" in answer.stderr
    assert is_unproven == (TYPO in [*old, *new] and not (old == new or CLOSED in new))
    assert ("no change of connectivity" in answer.stdout) == (status == 0)


def to(name: str, port: int = 80) -> dict:
    return {"to": [{"podSelector": {"matchLabels": {"app": name}}}], "ports": [{"port": port}]}


@pytest.mark.parametrize(
    ("old", "new", "status", "is_partly"),
    [
        ([to("a1")], [to("a1"), to("dns")], 2, True),
        ([to("a1"), to("dns")], [to("a1"), to("dns", 53)], 2, True),
        ([to("a1"), to("dns")], [to("dns"), to("a1")], 0, False),
        ([to("a1"), to("dns")], [to("a1", 81), to("dns")], 1, False),
        ([to("a1")], [to("a1", 81), to("dns")], 1, True),
    ],
)
def test_a_changed_rule_for_pods_that_are_not_there_is_not_proven_to_be_without_effect(
    tmp_path: Path, old: list, new: list, status: int, is_partly: bool
):
    before, now = (with_spec(POLICY, policyTypes=["Egress"], egress=rules) for rules in (old, new))
    (tmp_path / "old.yaml").write_text(written(*documents(before)))
    answer = run("diff", tmp_path / "old.yaml", "-", input=written(*documents(now)))
    assert answer.exit_code == status, answer.output
    said = "the change of NetworkPolicy default/policy concerns Pods that are in neither OLD nor NEW"
    assert (said in answer.stderr) == is_partly
    assert ("no change of connectivity" in answer.stdout) == (status == 0)


# --- objects that are ignored, or count otherwise ---------------------------------------------------------------------

TWICE = "NetworkPolicy default/policy is defined 2 times; the last definition counts"
PROBE = {
    "apiVersion": "windlass.dev/v1alpha1",
    "kind": "Probe",
    "metadata": {"name": "probe"},
    "spec": {"from": {"pod": "default/p0"}, "to": {"pod": "default/p1"}, "expect": {"outcome": "Timeout"}},
}


@pytest.mark.parametrize(
    ("second", "is_reported"),
    [
        ([with_spec(POLICY, ingress=[{}])], True),
        ([POLICY], False),
        ([with_spec(POLICY, ingress=[{}]), PROBE], False),  # a scenario: its steps change objects
    ],
)
def test_an_object_with_several_definitions_is_reported(tmp_path: Path, second: list, is_reported: bool):
    answer = run("explain", "p0", "-", input=written(*documents(POLICY, *second)))
    assert answer.stderr == (f"windlass policy explain: {TWICE}\n" if is_reported else "")
    if PROBE not in second:
        assert (f"windlass render: {TWICE}\n" in rendered(tmp_path, POLICY, *second).stderr) == is_reported


def test_kinds_of_other_apis_do_not_make_manifests_a_scenario(tmp_path: Path):
    probe = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Probe", "metadata": {"name": "web"}, "spec": {"x": 1}}
    changed = with_spec(POLICY, ingress=[{}])
    answer = run("explain", "p0", "-", input=written(*documents(POLICY, changed, probe)))
    assert answer.stderr == f"windlass policy explain: {TWICE}\n"
    assert "Probe web (monitoring.coreos.com/v1) is ignored" in rendered(tmp_path, probe).stderr


def test_a_kind_of_another_group_is_not_taken_for_a_misspelled_one():
    other = {**POLICY, "apiVersion": "k8s.ovn.org/v1", "kind": "PodNetworkPolicy"}
    answer = run("explain", "p0", "-", input=written(*documents(other)))
    assert "1 PodNetworkPolicy (k8s.ovn.org/v1) is left out: Windlass does not enforce this kind" in answer.stderr


def test_a_kind_that_is_no_text_is_an_error(tmp_path: Path):
    (tmp_path / "all.yaml").write_text("kind: {}\nmetadata: {name: a}\n")
    answer = CliRunner().invoke(main, ["render", str(tmp_path), "--node", "n"])
    assert (answer.exit_code, answer.exception.__class__) == (2, SystemExit)
    assert "kind: is missing" in answer.stderr


def test_an_object_is_reported_if_several_files_define_it(tmp_path: Path):
    for name, spec in (("a", {}), ("b", {"ingress": [{}]})):
        (tmp_path / f"{name}.yaml").write_text(written(*documents(with_spec(POLICY, **spec))))
    assert run("diff", tmp_path, tmp_path).stderr == f"windlass policy diff: {TWICE}\n"


MEANT = "(did you mean ClusterNetworkPolicy?)"


@pytest.mark.parametrize(
    ("policy", "explained", "shown"),
    [
        (
            {**CLUSTER_POLICY, "kind": "ClusterNetworkPolices"},
            f"ClusterNetworkPolices platform is ignored: there is no such kind {MEANT}",
            f"ClusterNetworkPolices platform ({VERSION}) is ignored: this kind is not read {MEANT}",
        ),
        (
            {**CLUSTER_POLICY, "kind": "clusternetworkpolicy"},
            f"clusternetworkpolicy platform is ignored: there is no such kind {MEANT}",
            f"clusternetworkpolicy platform ({VERSION}) is ignored: this kind is not read {MEANT}",
        ),
        (
            {**CLUSTER_POLICY, "apiVersion": "policy.networking.k8s.io/v1"},
            f"ClusterNetworkPolicy platform has the apiVersion policy.networking.k8s.io/v1; it is read as {VERSION}",
            f"ClusterNetworkPolicy platform (policy.networking.k8s.io/v1) is ignored: only {VERSION} is read",
        ),
        (
            {name: value for name, value in POLICY.items() if name != "apiVersion"},
            "NetworkPolicy default/policy has no apiVersion; it is read as networking.k8s.io/v1",
            None,
        ),
    ],
)
def test_kinds_and_versions_that_are_not_those_of_policies_are_reported(
    tmp_path: Path, policy: dict, explained: str, shown: str | None
):
    answer = run("explain", "p0", "-", input=written(*documents(policy)))
    assert answer.stderr == f"windlass policy explain: standard input: {explained}\n"
    if shown is not None:
        assert rendered(tmp_path, policy).stderr == f"windlass render: all.yaml: {shown}\n"
