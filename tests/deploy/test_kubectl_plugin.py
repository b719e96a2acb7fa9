"""The kubectl plugin with a kubectl that is a stand-in: which Pod is asked, with which arguments, with which outcome.

What a real kubectl makes of that is tried on a whole cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "deploy" / "kubectl-windlass"

# Answers `get nodes` and `get pods` from files, writes down what it was asked to `exec`, and ends as the file says.
STAND_IN = """#!/bin/sh
here=$(dirname "$0")
for argument in "$@"; do printf '[%s]' "$argument"; done >>"$here/asked"
echo >>"$here/asked"
for argument in "$@"; do
    case $argument in
    pod) cat "$here/node-of-the-pod" && exit 0 || exit 1 ;;
    nodes) cat "$here/nodes" && exit 0 || exit 1 ;;
    spec.nodeName=*) cat "$here/pods-${argument#*=}" 2>/dev/null; exit 0 ;;
    agent-*) echo "answer of $argument"; exit "$(cat "$here/status-$argument" 2>/dev/null || echo 0)" ;;
    esac
done
"""


class Kubectl:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "kubectl"
        program.write_text(STAND_IN)
        program.chmod(0o755)

    def nodes(self, **pods: str) -> None:
        """Each with the lines of `get pods`: name, phase and, of one that goes, since when."""
        (self.folder / "nodes").write_text(" ".join(pods))
        for node, lines in pods.items():
            (self.folder / f"pods-{node}").write_text(lines)

    def ends(self, pod: str, status: int) -> None:
        (self.folder / f"status-{pod}").write_text(str(status))

    def windlass(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(PLUGIN), *arguments], check=False, capture_output=True, text=True, env={"PATH": path}
        )

    @property
    def executed(self) -> list[str]:
        asked = (self.folder / "asked").read_text().splitlines()
        return [line.partition("[--][windlass]")[2] for line in asked if "[exec]" in line]


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    made = Kubectl(tmp_path)
    made.nodes(alpha="agent-a Running \n", beta="agent-b Running \n")
    return made


def test_status_queries_all_nodes_and_exits_with_the_worst_status(kubectl: Kubectl):
    kubectl.ends("agent-a", 1)
    done = kubectl.windlass("status")
    assert done.stdout == "== alpha\nanswer of agent-a\n\n== beta\nanswer of agent-b\n\n"
    assert done.returncode == 1
    assert kubectl.executed == ["[status]", "[status]"]


def test_status_of_one_node_is_its_answer_alone(kubectl: Kubectl):
    done = kubectl.windlass("status", "beta", "--json")
    assert done.stdout == "answer of agent-b\n"
    assert done.returncode == 0
    assert kubectl.executed == ["[status][--json]"]


def test_a_node_without_an_agent_is_named_and_the_others_answer(kubectl: Kubectl):
    kubectl.nodes(alpha="", beta="agent-b Running \n")
    done = kubectl.windlass("status")
    assert "no agent is on Node alpha" in done.stderr
    assert "describe daemonset windlass-agent" in done.stderr
    assert "answer of agent-b" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize(
    "pods",
    [
        "agent-old Running 2026-01-01T00:00:00Z\nagent-new Running \n",
        "agent-new Running \nagent-old Running 2026-01-01T00:00:00Z\n",
        "agent-pending Pending \nagent-new Running \n",
    ],
)
def test_of_two_pods_on_a_node_the_one_that_stays_is_asked(kubectl: Kubectl, pods: str):
    kubectl.nodes(alpha=pods)
    assert kubectl.windlass("status", "alpha").stdout == "answer of agent-new\n"


def test_flows_hands_its_options_on_as_they_are(kubectl: Kubectl):
    done = kubectl.windlass("flows", "--owner", "Service default/web", "alpha", "--format=ofctl", "--no-why")
    assert done.stdout == "answer of agent-a\n"
    assert kubectl.executed == ["[flows][--owner][Service default/web][--format=ofctl][--no-why]"]


def test_kubectls_own_options_reach_it_each_time(kubectl: Kubectl):
    kubectl.windlass("-n", "elsewhere", "--context=test", "status", "alpha", "--kubeconfig", "a file")
    asked = (kubectl.folder / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert all("[--kubeconfig=a file][--context=test]" in line for line in asked)
    assert all("[--namespace][elsewhere]" in line for line in asked)


@pytest.mark.parametrize("arguments", [("flows",), ("flows", "alpha", "beta")])
def test_flows_are_of_one_node(kubectl: Kubectl, arguments: tuple[str, ...]):
    done = kubectl.windlass(*arguments)
    assert done.returncode == 2
    assert "name it: kubectl windlass flows NODE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("explain", "shop/web", "--peer", "shop/cart"), "[policy][explain][shop/web][--peer][shop/cart]"),
        (("counters", "web", "--json"), "[policy][counters][default/web][--json]"),
    ],
)
def test_policies_are_explained_by_the_agent_of_the_pods_node(kubectl: Kubectl, arguments: tuple[str, ...], asked: str):
    (kubectl.folder / "node-of-the-pod").write_text("beta")
    done = kubectl.windlass("policy", *arguments)
    assert (done.returncode, done.stdout) == (0, "answer of agent-b\n")
    assert kubectl.executed == [asked]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "there are policy explain POD and policy counters POD"),
        (("diff", "a", "b"), "there is no policy diff"),
        (("explain",), "name it: kubectl windlass policy explain NAMESPACE/NAME"),
        (("explain", "shop/web", "shop/cart"), "it is about one Pod"),
        (("counters", "shop/web"), "Pod shop/web is on no Node yet"),
    ],
)
def test_a_policy_command_that_cannot_be_asked_says_why(kubectl: Kubectl, arguments: tuple[str, ...], sentence: str):
    (kubectl.folder / "node-of-the-pod").write_text("")
    done = kubectl.windlass("policy", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("log-level", "node-1"), "[log-level]"),
        (("log-level", "node-1", "debug", "--for", "10m"), "[log-level][debug][--for][10m]"),
        (("support-bundle", "node-1"), "[support-bundle][--output][-]"),
    ],
)
def test_other_commands_reach_the_agent_of_the_node(kubectl: Kubectl, arguments: tuple[str, ...], asked: str):
    kubectl.nodes(**{"node-1": "agent-1 Running", "node-2": "agent-2 Running"})
    done = kubectl.windlass(*arguments)
    assert (done.returncode, done.stdout) == (0, "answer of agent-1\n")
    assert kubectl.executed == [asked]
    kubectl.ends("agent-1", 2)
    assert kubectl.windlass(*arguments).returncode == 2


@pytest.mark.parametrize("command", ["log-level", "support-bundle"])
def test_they_need_a_node(kubectl: Kubectl, command: str):
    done = kubectl.windlass(command)
    assert done.returncode == 2
    assert f"kubectl windlass {command} NODE" in done.stderr


def test_a_kubectl_that_fails_is_not_taken_for_a_cluster_without_nodes(kubectl: Kubectl):
    (kubectl.folder / "nodes").unlink()
    done = kubectl.windlass("status")
    assert done.returncode == 2
    assert "no Nodes" not in done.stderr


def test_it_teaches(kubectl: Kubectl):
    done = kubectl.windlass("status", "--help")
    assert done.returncode == 0
    assert "kubectl windlass flows NODE" in done.stdout
    for arguments, words in (((), "Usage"), (("frobnicate",), "there is no frobnicate"), (("-n",), "needs a value")):
        done = kubectl.windlass(*arguments)
        assert done.returncode == 2
        assert words in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", str(PLUGIN)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
