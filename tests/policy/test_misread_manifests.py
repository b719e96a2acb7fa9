"""Manifests that do not mean what they seem to mean: `windlass policy` and `windlass render` say what they ignore."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from policy_commands import documents, network_policy, run, written

from windlass.cli.main import main
from windlass.lab.scenarios.unknown_fields import unknown_fields

POLICY = {**network_policy(), "apiVersion": "networking.k8s.io/v1"}
CLUSTER_POLICY = {
    "apiVersion": "policy.networking.k8s.io/v1alpha2",
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
MALFORMED = "spec.ingress: expected `array`, got `object`"
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
