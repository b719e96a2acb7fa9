"""Workloads, and Pods whose addresses are not known, in `windlass policy`."""

from __future__ import annotations

import json
from pathlib import Path

from policy_commands import network_policy, run, workload, written

WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
V6 = {"from": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}


def explained(pod: str, *objects: dict, peer: str | None = None) -> dict:
    answer = run("explain", pod, "-", "--json", *(["--peer", peer] if peer else []), input=written(*objects))
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def rows(side: dict) -> dict[str, dict[str, str]]:
    """The verdict about each part of the traffic, by peer."""
    return {
        name: {one["traffic"]: one["verdict"] for one in row["verdicts"]}
        for row in side["peers"]
        for names in row["peers"].values()
        for name in names
    }


def difference(folder: Path, old: list[dict], new: list[dict]) -> dict:
    (folder / "old.yaml").write_text(written(*old))
    answer = run("diff", folder / "old.yaml", "-", "--json", input=written(*new))
    assert answer.exit_code in {0, 1}, answer.output
    return json.loads(answer.stdout)


def test_traffic_between_the_replicas_of_a_workload_is_explained():
    policy = network_policy(**WEB, ingress=[{"from": [WEB], "ports": [{"port": 80}]}])
    side = explained("web", workload("web", app="web"), policy)["ingress"]
    assert rows(side)["its other replicas"] == {"TCP 80": "Allow", "everything else": "Deny"}


def test_traffic_between_the_replicas_of_a_workload_is_compared(tmp_path):
    old, new = (
        [workload("web", "StatefulSet", app="web"), network_policy(ingress=[{"ports": [{"port": port}]}])]
        for port in (80, 81)
    )
    found = {
        (one["change"], one["traffic"])
        for one in difference(tmp_path, old, new)["changes"]
        if one["source"] == {"pods": ["default/web"]} and one["destination"] == {"pods": ["its other replicas"]}
    }
    assert found == {("Added", "TCP 81"), ("Removed", "TCP 80")}


def test_a_single_pod_has_no_other_replicas():
    pod = {"kind": "Pod", "metadata": {"name": "web"}}
    assert "its other replicas" not in rows(explained("web", pod, network_policy())["ingress"])


def test_a_workload_counts_as_one_pod_of_its_namespace():
    objects = [workload(name) for name in ("a", "b")]
    monitor = {"kind": "Pod", "metadata": {"name": "m", "namespace": "monitoring"}}
    assert "all 2 Pods of default" in run("explain", "monitoring/m", "-", input=written(monitor, *objects)).output


def test_rules_with_ipv6_networks_are_judged_for_pods_without_a_node():
    side = explained("web", workload("web", app="web"), network_policy(ingress=[V6]))["ingress"]
    assert rows(side)["2001:db8::/32"] == {"all traffic": "Allow"}
    assert rows(side)["::/0"] == {"all traffic": "Deny"}


def test_a_new_rule_with_an_ipv6_network_is_compared_for_pods_without_a_node(tmp_path):
    """Only NEW shows that the cluster uses IPv6."""
    found = difference(tmp_path, [workload("web")], [workload("web"), network_policy(ingress=[V6])])
    removed = {name for one in found["changes"] for name in one["source"].get("networks", [])}
    assert removed == {"0.0.0.0/0", "::/0"}


def test_a_cluster_without_ipv6_is_explained_without_ipv6():
    assert [*rows(explained("web", workload("web"))["egress"])] == ["its other replicas", "0.0.0.0/0"]


def test_a_change_of_both_ip_versions_is_one_row(tmp_path):
    old, new = ([workload("a"), workload("b"), network_policy(ingress=[rule])] for rule in (V6, {}))
    [change] = [one for one in difference(tmp_path, old, new)["changes"] if "networks" in one["source"]]
    assert change["destination"] == {"pods": ["default/a", "default/b"]}
    assert change["source"]["networks"] == ["0.0.0.0/0", "::/0"]


def test_objects_with_the_same_name_keep_their_own_labels():
    pod = {"kind": "Pod", "metadata": {"name": "web", "labels": {"app": "pod"}}}
    objects = [workload("web", "CronJob", app="job"), workload("web", app="web"), pod]
    selecting = network_policy(podSelector={"matchLabels": {"app": "job"}})
    policies = {
        name: explained(name, *objects, selecting)["ingress"]["policies"]
        for name in ("web", "web (Deployment)", "web (CronJob)")
    }
    assert policies == {
        "web": [],
        "web (Deployment)": [],
        "web (CronJob)": ["NetworkPolicy default/policy"],
    }


def test_an_object_with_generate_name_has_that_name():
    pods = [{"kind": "Pod", "metadata": {"generateName": "job-", "labels": {"n": str(n)}}} for n in (1, 2)]
    job = workload("migrate-", "Job")
    job["metadata"] = {"generateName": "migrate-"}
    side = explained("job-", *pods, job)["egress"]
    assert {"default/job-2", "default/migrate-"} <= rows(side).keys()


def test_an_address_that_is_not_known_is_not_shown():
    text = run("explain", "web", "-", input=written(workload("web"))).output
    assert text.startswith("Pod default/web: no address known\n")
    assert explained("web", workload("web"))["addresses"] == []


def test_the_placeholder_of_an_address_is_not_a_peer():
    objects = [workload("web"), workload("db"), network_policy(ingress=[{"from": [{"podSelector": {}}]}])]
    for address in ("240.0.0.2", "240.0.0.3"):
        side = explained("web", *objects, peer=address)["ingress"]
        assert rows(side) == {address: {"all traffic": "Deny"}}


def test_a_pod_has_no_address_if_the_network_of_its_node_is_full():
    node = {"kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.1.0/30"]}}
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": "n"}} for name in "abc"]
    assert explained("b", node, *pods)["addresses"] == ["10.1.1.3"]
    assert explained("c", node, *pods)["addresses"] == []


def test_a_workload_is_compared_with_itself_if_another_one_of_its_name_is_deleted(tmp_path):
    """Not with the other one, whose name it would have alone."""
    cron, selecting = workload("web", "CronJob", app="job"), network_policy(podSelector={"matchLabels": {"app": "job"}})
    found = difference(tmp_path, [workload("web", app="web"), cron, selecting], [cron, selecting])
    assert (found["removedPods"], found["addedPods"], found["changes"]) == (["default/web"], [], [])
    found = difference(tmp_path, [cron, selecting], [workload("web", app="web"), cron, selecting])
    assert (found["removedPods"], found["addedPods"], found["changes"]) == ([], ["default/web"], [])


def test_a_single_workload_that_changes_its_kind_is_compared(tmp_path):
    old, new = ([workload("web", kind), workload("db")] for kind in ("Deployment", "StatefulSet"))
    changes = difference(tmp_path, old, [*new, network_policy()])["changes"]
    assert ["default/db", "default/web"] in [change["source"].get("pods") for change in changes]


def test_a_pod_that_has_ended_does_not_have_the_name_of_its_job():
    ended = {"kind": "Pod", "metadata": {"name": "migrate"}, "status": {"phase": "Succeeded"}}
    assert explained("migrate", workload("migrate", "Job"), ended)["pod"] == "default/migrate"
