"""`windlass lab fuzz` on real clusters with Open vSwitch, and the files that it keeps of failed ones."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from labnet import needs_root

from windlass.cli.lab import lab
from windlass.lab.fuzz import features, seeds
from windlass.lab.fuzz import runs as fuzz_runs
from windlass.lab.fuzz.random_scenarios import RandomScenario, ScenarioFile, random_scenario
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios import scenario_files

USUAL = features.without(())


@pytest.fixture
def able():
    try:
        runs.check_machine(Programs())
    except LabError as error:
        pytest.skip(str(error))


def test_write_writes_scenarios_and_runs_nothing(tmp_path):
    done = CliRunner().invoke(lab, ["fuzz", "--seed", "3", "--count", "2", "--write", str(tmp_path)])
    assert (done.exit_code, sorted(path.name for path in tmp_path.iterdir())) == (0, ["seed-3", "seed-4"])
    assert [found.name for found in scenario_files.find(tmp_path)] == ["seed-3", "seed-4"]
    alone = CliRunner().invoke(lab, ["fuzz", "--seed", "3", "--count", "1", "--write", str(tmp_path / "one")])
    assert alone.exit_code == 0
    assert (tmp_path / "one" / "00-cluster.yaml").read_bytes() == (tmp_path / "seed-3" / "00-cluster.yaml").read_bytes()


@pytest.mark.parametrize("option", ["--without", "--with"])
def test_a_feature_that_does_not_exist_is_an_error_of_usage(option):
    done = CliRunner().invoke(lab, ["fuzz", option, "nothing"])
    assert done.exit_code == 2
    assert "there is no feature 'nothing'" in done.output


def test_with_skips_seeds_that_lack_a_feature(tmp_path):
    """The clusters that it finds are those of their seeds without the option."""
    asked = ["fuzz", "--seed", "1", "--count", "2", "--with", "policies,agents", "--write", str(tmp_path)]
    done = CliRunner().invoke(lab, asked)
    assert (done.exit_code, sorted(path.name for path in tmp_path.iterdir())) == (0, ["seed-7", "seed-8"])
    texts = "".join(path.read_text() for path in sorted((tmp_path / "seed-7").iterdir()))
    assert texts == "".join(text for _, text in random_scenario(7, USUAL).files())
    assert "killAgent" in texts
    assert "kind: NetworkPolicy" in texts


def test_a_feature_with_and_without_is_an_error_of_usage():
    done = CliRunner().invoke(lab, ["fuzz", "--with", "policies,udp", "--without", "policies"])
    assert done.exit_code == 2
    assert "no cluster has policies, which --without leaves out" in done.output


@pytest.mark.parametrize(
    ("option", "place", "said"),
    [
        ("--write", "a-file", "is a file"),
        ("--json", "", "is a directory"),
        ("--json", "nowhere/result.json", "nowhere does not exist"),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error_before_the_run(tmp_path, option, place, said):
    (tmp_path / "a-file").touch()
    done = CliRunner().invoke(lab, ["fuzz", option, str(tmp_path / place)])
    assert done.exit_code == 2
    assert said in done.output


def test_the_command_that_reproduces_a_cluster():
    other = features.without(["ipv6", "agents"])
    assert random_scenario(7, other).command == "windlass lab fuzz --seed 7 --count 1 --without agents,ipv6"
    assert random_scenario(7, USUAL).command == "windlass lab fuzz --seed 7 --count 1"


@needs_root
@pytest.mark.usefixtures("able")
def test_a_cluster_that_fails_is_kept_as_a_scenario(tmp_path, capsys):
    """Two hosts, and a wrong expectation."""
    left = {"kind": "ExternalHost", "metadata": {"name": "left"}, "spec": {"addresses": ["10.5.0.5"]}}
    right = {"kind": "ExternalHost", "metadata": {"name": "right"}, "spec": {"addresses": ["10.6.0.6"]}}
    spec = {"from": {"externalHost": "left"}, "to": {"address": "10.6.0.6", "port": 80}}
    probe = {"kind": "Probe", "metadata": {"name": "wrong"}, "spec": spec}
    made = RandomScenario(
        8, "Seed 8: two hosts", "the command", (ScenarioFile("00-cluster.yaml", ("why",), (left, right, probe)),)
    )

    assert fuzz_runs.run([made], keep=tmp_path / "kept", json_file=tmp_path / "out.json") == 1
    kept = (tmp_path / "kept" / "seed-8" / "00-cluster.yaml").read_text()
    assert kept.startswith("# Seed 8: two hosts.\n# Reproduce: the command\n# why\n---\n")
    printed = capsys.readouterr().out
    assert "Seed 8: two hosts: 1 probes, steps: 1, 1 FAILED in" in printed
    assert "00-cluster.yaml wrong: expected Connected, saw Refused" in printed
    assert f"kept in {tmp_path / 'kept' / 'seed-8'}; reproduce with: the command" in printed
    assert "1 probes, 1 failed; failures in seed-8" in printed
    assert json.loads((tmp_path / "out.json").read_text())["scenarios"][0]["name"] == "seed-8"


@needs_root
@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("seed", "has"), [(17, "changes"), (629, "policies,changes,agents,denials")])
def test_a_random_cluster_does_what_kubernetes_says(seed, has, tmp_path, capsys):
    """In the second one a policy is added and an agent is killed, with probes of policies."""
    assert seeds.appear(features.named(has.split(",")), seed, USUAL)
    status = fuzz_runs.run([random_scenario(seed, USUAL)], keep=tmp_path / "kept")
    assert status == 0, capsys.readouterr().out
