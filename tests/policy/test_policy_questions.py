"""What users ask `windlass policy`: peers by name and address, nothing to compare, and short names in the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from policy_commands import documents, network_policy, run, written

from shown_commands import ROOT

SHOP = ROOT / "docs" / "examples" / "shop"


def node(name: str, *addresses: str, cidrs: tuple[str, ...] = ()) -> dict:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return {"kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": [*cidrs]}, "status": status}


def pod(name: str, where: str = "n1", **spec: object) -> dict:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": where, **spec}}


NODES = [node("n1", "10.0.0.11", cidrs=("10.1.1.0/24",)), node("n2", "10.0.0.12", cidrs=("10.1.2.0/24",))]
FROM_NODE_IPS = network_policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]}])


def peers(side: dict) -> list[dict[str, list[str]]]:
    return [row["peers"] for row in side["peers"]]


def asked(*arguments: str, objects: list[dict]) -> dict:
    answer = run("explain", *arguments, "-", "--json", input=written(*objects))
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def refused(*arguments: object, objects: list[dict]) -> str:
    answer = run("explain", *arguments, "-", input=written(*objects))
    assert answer.exit_code == 2, answer.output
    return answer.stderr


def test_a_node_whose_addresses_are_treated_differently_is_named_with_them():
    side = asked("p", objects=[*NODES, pod("p"), FROM_NODE_IPS])["ingress"]
    nodes = [name for row in peers(side) for name in row.get("nodes", [])]
    assert sorted(nodes) == ["its own Node", "n2 (10.0.0.12)", "n2 (10.1.2.1)"]


def test_a_difference_names_the_address_of_a_node_that_it_concerns(tmp_path: Path):
    (tmp_path / "old.yaml").write_text(written(*NODES, pod("p"), network_policy()))
    answer = run("diff", tmp_path / "old.yaml", "-", "--json", input=written(*NODES, pod("p"), FROM_NODE_IPS))
    [change] = json.loads(answer.stdout)["changes"]
    assert change["source"] == {"nodes": ["n2 (10.0.0.12)"], "networks": ["10.0.0.0/24"]}


def test_a_difference_excludes_the_own_nodes_of_pods_if_they_are_not_affected(tmp_path: Path):
    """A Pod always accepts its own Node, so a new denial changes nothing there, and for egress neither."""
    objects = [*NODES, pod("a"), pod("b", "n2")]
    (tmp_path / "old.yaml").write_text(written(*objects))
    for policy, side in ((network_policy(), "source"), (network_policy(policyTypes=["Egress"]), "destination")):
        arguments = "diff", tmp_path / "old.yaml", "-"
        [change] = json.loads(run(*arguments, "--json", input=written(*objects, policy)).stdout)["changes"]
        pods, networks = ["default/a", "default/b"], ["0.0.0.0/0"]
        assert change[side] == {"pods": pods, "nodes": ["n1", "n2"], "networks": networks, "exceptOwnNode": True}
        assert "its own Node" in run(*arguments, input=written(*objects, policy)).stdout


def test_a_difference_that_affects_own_nodes_too_excludes_none(tmp_path: Path):
    objects = [*NODES, pod("a"), pod("b", "n2")]
    (tmp_path / "old.yaml").write_text(written(*objects))
    deny = {"action": "Deny", "to": [{"nodes": {}}]}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [deny]}
    policy = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "deny"}, "spec": spec}
    answer = run("diff", tmp_path / "old.yaml", "-", "--json", input=written(*objects, policy))
    [change] = json.loads(answer.stdout)["changes"]
    assert change["destination"] == {"nodes": ["its own Node", "n1", "n2"]}


def test_a_peer_that_is_asked_by_address_is_named_with_it():
    objects = [*NODES, pod("p"), pod("q")]
    for address, expected in (
        ("10.0.0.12", {"nodes": ["n2 (10.0.0.12)"]}),
        ("10.1.1.3", {"pods": ["default/q (10.1.1.3)"]}),
        ("203.0.113.9", {"networks": ["203.0.113.9"]}),
    ):
        assert peers(asked("p", "--peer", address, objects=objects)["ingress"]) == [expected]


def test_a_group_with_one_ip_version_says_which():
    ipv4 = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
    policy = network_policy(ingress=[{"from": ipv4}], egress=[{"to": ipv4}])
    policy["metadata"]["namespace"] = "y"
    server = {"kind": "Pod", "metadata": {"name": "s", "namespace": "y"}}
    answer = run("explain", "y/s", "-", input=written(*documents(), server, policy)).output
    for part in answer.split("What it may reach"):
        assert "all 2 Pods of default (IPv4)" in part
        assert "all 2 Pods of default (IPv6)" in part
    nodes = [node(f"n{number}", f"192.168.1.{number}", f"fd00:a::{number}") for number in (2, 3)]
    answer = run("explain", "y/s", "-", input=written(*nodes, server, policy)).output
    assert "all 2 Nodes (IPv4)" in answer
    assert "all 2 Nodes (IPv6)" in answer


def test_one_more_is_singular():
    blocks = [{"ipBlock": {"cidr": f"203.0.{number}.0/24"}} for number in range(5)]
    answer = run("explain", "p0", "-", input=written(*documents(network_policy(ingress=[{"from": blocks}]))))
    assert "1 more network " in " ".join(answer.output.split())


def test_networks_are_listed_by_number():
    blocks = [{"ipBlock": {"cidr": f"10.9.{number}.0/24"}} for number in (10, 9, 100)]
    policies = [network_policy(ingress=[{"from": [one], "ports": [{"port": 80 + i}]}]) for i, one in enumerate(blocks)]
    policies = [{**one, "metadata": {"name": f"p{i}"}} for i, one in enumerate(policies)]
    for objects in ([network_policy(ingress=[{"from": blocks}])], policies):
        side = asked("p0", objects=documents(*objects))["ingress"]
        networks = [name for row in peers(side) for name in row.get("networks", []) if name.startswith("10.9.")]
        assert networks == ["10.9.9.0/24", "10.9.10.0/24", "10.9.100.0/24"]


def test_many_policies_and_rules_are_not_all_listed(tmp_path: Path):
    """The JSON has all of them."""
    policies = [{**network_policy(), "metadata": {"name": f"p{number:04}"}} for number in range(1010)]
    text = written(*documents(*policies))
    answer = run("explain", "p0", "-", input=text)
    assert "NetworkPolicy default/p0009, and 1,000 more\n" in answer.stdout
    assert len(answer.stdout.splitlines()) < 100
    assert len(asked("p0", objects=documents(*policies))["ingress"]["policies"]) == 1010
    (tmp_path / "old.yaml").write_text(written(*documents()))
    assert len(run("diff", tmp_path / "old.yaml", "-", input=text).stdout.splitlines()) < 100


LONG = "a-name-of-a-workload-of-more-than-forty-characters-0"


def test_a_long_name_stays_whole_in_a_file_and_does_not_shift_the_table():
    objects = [*NODES, pod(LONG), pod("q"), network_policy(ingress=[{"from": [{"podSelector": {}}]}] * 2)]
    lines = run("explain", "q", "-", input=written(*objects)).stdout.splitlines()
    assert_aligned(lines)
    assert any(f"default/{LONG}" in line for line in lines)


def test_a_table_with_long_names_fits_the_terminal(tmp_path: Path):
    (tmp_path / "all.yaml").write_text(written(*NODES, pod(LONG), pod("q"), network_policy(ingress=[{}])))
    lines = on_a_terminal(60, "explain", "q", tmp_path / "all.yaml")
    assert_aligned(lines)
    assert max(map(len, lines)) <= 60
    assert LONG in "".join(line[2:].split("  ")[0] for line in lines)


def assert_aligned(lines: list[str]) -> None:
    """The first lines of rows have their traffic below the word TRAFFIC."""
    for header, *rows in (part.splitlines() for part in "\n".join(lines).split("selected by: ")[1:]):
        [at] = {line.index("TRAFFIC") for line in [header, *rows] if "TRAFFIC" in line}
        shown = [line for line in rows if "all traffic" in line]
        assert {line.index("all traffic") for line in shown} == {at}, lines


def on_a_terminal(columns: int, *arguments: object) -> list[str]:
    """What the command prints there, without colours."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (24, columns))
        command = [sys.executable, "-c", "from windlass.cli import main; main()", "policy", *map(str, arguments)]
        subprocess.run(command, stdout=theirs, check=True, env={**os.environ, "NO_COLOR": "1"})
        return os.read(ours, 65536).decode().splitlines()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_peer_of_an_ip_version_that_the_pod_does_not_have_is_refused():
    sentence = "--peer 2001:db8::1: default/p has no IPv6 address"
    assert sentence in refused("p", "--peer", "2001:db8::1", objects=[*NODES, pod("p")])


def test_the_pod_itself_may_be_the_peer():
    [row] = peers(asked("p", "--peer", "p", objects=[*NODES, pod("p")])["ingress"])
    assert row == {"pods": ["itself, through a Service"]}


def test_traffic_of_a_pod_with_itself_is_listed_once():
    text = written(*NODES, pod("p"), network_policy(ingress=[]))
    shown = run("explain", "p", "-", "--peer", "p", input=text).stdout
    assert shown.count("itself, through a Service") == 1
    assert shown.endswith("  selected by: no policy\n  the same as what may reach it\n")


def test_a_pod_that_has_ended_has_no_address():
    objects = [*NODES, pod("p"), {**pod("done"), "status": {"phase": "Succeeded", "podIP": "10.1.1.9"}}]
    assert "Pod default/done has ended (Succeeded) and has no address" in refused("done", objects=objects)
    sentence = "--peer done: Pod default/done has ended (Succeeded) and has no address"
    assert sentence in refused("p", "--peer", "done", objects=objects)


def test_a_pod_is_asked_by_name_not_by_address():
    sentence = "172.16.1.2 is an IP address; POD must be namespace/name"
    assert sentence in refused("172.16.1.2", objects=[*NODES, pod("p")])


def test_manifests_without_pods_are_named_as_such():
    sentence = "there is no Pod default/p: the manifests contain no Pod and no workload with an address of its own"
    for objects in ([], NODES, [*NODES, pod("host", hostNetwork=True)]):
        assert sentence in refused("p", objects=objects)


def test_a_pod_with_host_network_is_asked_by_its_node():
    objects = [*NODES, pod("p"), pod("host", "n2", hostNetwork=True)]
    sentence = "Pod default/host uses hostNetwork and has no address of its own; ask about its Node n2"
    assert f"--peer host: {sentence}" in refused("p", "--peer", "host", objects=objects)
    assert sentence in refused("host", objects=objects)


def test_an_empty_peer_or_path_is_refused():
    assert "--peer '': neither a Pod" in refused("p", "--peer", "", objects=[*NODES, pod("p")])
    for arguments in (["explain", "shop/web", ""], ["diff", "", SHOP], ["diff", SHOP, ""]):
        answer = run(*arguments)
        assert (answer.exit_code, "it is empty; give a file" in answer.output) == (2, True), answer.output


def test_only_one_side_of_a_difference_may_be_standard_input():
    answer = run("diff", "-", "-", input=written(*NODES))
    assert answer.exit_code == 2
    assert "only one of OLD and NEW can be standard input" in answer.stderr


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ([network_policy()], [network_policy(ingress=[{}])], 2),
        ([network_policy()], [network_policy()], 2),
        ([pod("a"), network_policy()], [pod("b")], 2),
        ([pod("a")], [pod("b")], 1),
        ([], [], 0),
    ],
)
def test_a_difference_without_common_pods_proves_nothing(tmp_path: Path, old: list, new: list, status: int):
    (tmp_path / "old.yaml").write_text(written(*NODES, *old))
    answer = run("diff", tmp_path / "old.yaml", "-", input=written(*NODES, *new))
    assert answer.exit_code == status, answer.output
    sentence = "no Pod or workload is in both OLD and NEW, so no traffic was compared"
    assert (sentence in answer.stderr, "no change of connectivity" in answer.stdout) == (True, status == 0)
