"""The probes of `lab fuzz` for policies: of Pods, and to and from machines outside."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from windlass.lab.fuzz import cluster_views, oracle, random_policy_probes
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import identity
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.scenarios.objects import ProbeOutcome

NODE = {
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "spec": {"podCIDRs": ["172.16.1.0/24"]},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
}
POD = {
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"nodeName": "node-1", "containers": [{"ports": [{"containerPort": 80}]}]},
    "status": {"podIPs": [{"ip": "172.16.1.10"}]},
}
HOST = {
    "kind": "ExternalHost",
    "metadata": {"name": "out"},
    "spec": {"addresses": ["10.3.0.3"], "ports": [{"port": 8443}]},
}


def cluster(mode, block):
    """The Pod may connect to this block, and this block to the Pod."""
    config = {"kind": "ConfigMap", "metadata": {"name": "windlass-config", "namespace": "kube-system"}}
    config["data"] = {"windlass.yaml": f"trafficMode: {mode}"}
    peers = [{"ipBlock": {"cidr": block}}]
    spec = {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers}],
        "egress": [{"to": peers}],
    }
    policy = {"kind": "NetworkPolicy", "metadata": {"name": "np"}, "spec": spec}
    return cluster_views.read({identity(one): one for one in (config, NODE, POD, HOST, policy)})


@pytest.mark.parametrize(
    ("mode", "block", "outcome"),
    [
        ("noEncap", "10.3.0.0/24", ProbeOutcome.CONNECTED),
        ("noEncap", "192.0.2.0/24", ProbeOutcome.TIMEOUT),
        ("hybrid", "10.3.0.0/24", None),
        ("encap", "192.0.2.0/24", None),
    ],
)
def test_a_machine_outside_reaches_pods_where_the_underlay_has_routes_to_them(mode, block, outcome):
    answer = oracle.predict(cluster(mode, block), Query(Client(host="out"), ip_address("172.16.1.10"), 80))
    assert (answer and answer.outcome) is outcome


@pytest.mark.parametrize(("system", "outcome"), [("linux", ProbeOutcome.CONNECTED), ("windows", None)])
def test_pods_of_windows_nodes_cannot_reach_machines_outside_by_sctp(system, outcome):
    node = {**NODE, "metadata": {"name": "node-1", "labels": {"kubernetes.io/os": system}}}
    host = {**HOST, "spec": {"addresses": ["10.3.0.3"], "ports": [{"port": 7700, "protocol": "SCTP"}]}}
    view = cluster_views.read({identity(one): one for one in (node, POD, host)})
    answer = oracle.predict(view, Query(Client(pod="default/web"), ip_address("10.3.0.3"), 7700, "SCTP"))
    assert (answer and answer.outcome) is outcome


@pytest.mark.parametrize(
    ("block", "outcomes"), [("10.3.0.0/24", {"Connected", "Refused"}), ("192.0.2.0/24", {"Timeout"})]
)
@pytest.mark.parametrize(("mode", "clients"), [("noEncap", {"pod", "externalHost"}), ("encap", {"pod"})])
def test_probes_between_pods_and_machines_outside(mode, clients, block, outcomes):
    """A Pod also connects to ports that the machine outside does not have."""
    probes = [one["spec"] for one in random_policy_probes.outside(Dice("outside"), cluster(mode, block), 6)]
    assert {source for probe in probes for source in probe["from"]} == clients
    assert {probe["expect"]["outcome"] for probe in probes} == outcomes
    assert {(probe["to"].get("pod"), probe["to"].get("address")) for probe in probes} <= {
        ("default/web", None),
        (None, "10.3.0.3"),
    }
