"""What programs read: the traffic of `windlass policy explain --json` and `diff --json`, and the warnings."""

from __future__ import annotations

import json
from pathlib import Path

from policy_commands import documents, network_policy, run, written

WHOLE = [{"protocol": name, "from": 0, "to": 65535} for name in ("TCP", "UDP", "SCTP")]
OTHER = {"protocol": "other"}
ALLOWED = [{"protocol": "TCP", "from": 80, "to": 90}, {"protocol": "UDP", "from": 53, "to": 53}]
LIMITED = network_policy(ingress=[{"ports": [{"port": 80, "endPort": 90}, {"port": 53, "protocol": "UDP"}]}])
SELECTS_NOTHING = {**network_policy(), "metadata": {"name": "p", "namespace": "empty"}}
WARNING = "NetworkPolicy empty/p selects no Pod of the manifests, so its effect is not shown"


def test_an_explanation_has_the_ports_of_each_part_of_the_traffic():
    text = written(*documents(LIMITED, SELECTS_NOTHING))
    answer = run("explain", "p0", "-", "--json", "--peer", "p1", input=text)
    found = json.loads(answer.stdout)
    [row] = found["ingress"]["peers"]
    allowed, denied = [one["ports"] for one in row["verdicts"]]
    assert allowed == ALLOWED
    assert [one for one in denied if one["protocol"] == "UDP"] == [
        {"protocol": "UDP", "from": 0, "to": 52},
        {"protocol": "UDP", "from": 54, "to": 65535},
    ]
    assert denied[-1] == OTHER
    [row] = json.loads(run("explain", "p1", "-", "--json", "--peer", "203.0.113.9", input=text).stdout)["egress"][
        "peers"
    ]
    assert row["verdicts"][0]["ports"] == [*WHOLE, OTHER]
    assert found["warnings"] == [WARNING]


def test_a_difference_has_the_ports_of_each_change(tmp_path: Path):
    (tmp_path / "old.yaml").write_text(written(*documents(network_policy(), SELECTS_NOTHING)))
    answer = run("diff", tmp_path / "old.yaml", "-", "--json", input=written(*documents(LIMITED)))
    found = json.loads(answer.stdout)
    assert {json.dumps(one["ports"]) for one in found["changes"]} == {json.dumps(ALLOWED)}
    assert found["warnings"] == [f"OLD: {WARNING}", "nothing is proven about the change of NetworkPolicy empty/p"]
    assert answer.stderr.splitlines() == [f"windlass policy diff: {one}" for one in found["warnings"]]


def test_an_answer_without_warnings_has_an_empty_list(tmp_path: Path):
    (tmp_path / "all.yaml").write_text(written(*documents()))
    for arguments in (["explain", "p0", tmp_path / "all.yaml"], ["diff", tmp_path / "all.yaml", tmp_path / "all.yaml"]):
        assert json.loads(run(*arguments, "--json").stdout)["warnings"] == []
