"""The scenarios of `lab fuzz`: the same for the same seed, readable, with the expectations of the oracle."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from ipaddress import ip_address

import pytest
import yaml
from applied_documents import applied
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.lab.fuzz import cluster_views, features, oracle, random_probes, seeds
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.fuzz.random_scenarios import random_scenario
from windlass.lab.scenarios import desired_states, scenario_files, targets
from windlass.lab.scenarios.objects import ProbeOutcome

ALL = features.without(())
SEEDS = st.integers(0, 10**9)
POLICIES = ("NetworkPolicy", "ClusterNetworkPolicy")

DIGEST = """
import hashlib, sys
from windlass.lab.fuzz import features
from windlass.lab.fuzz.random_scenarios import random_scenario
text = "".join(name + text for name, text in random_scenario(7, features.without(())).files())
sys.stdout.write(hashlib.sha256(text.encode()).hexdigest())
"""


def documents(made, kind):
    return [document for part in made.parts for document in part.documents if document["kind"] == kind]


def test_a_seed_gives_the_same_cluster_in_every_process():
    """Also if Python orders its sets differently."""
    text = "".join(name + text for name, text in random_scenario(7, ALL).files())
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        assert told.stdout == hashlib.sha256(text.encode()).hexdigest()


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_the_lab_reads_the_scenario_and_the_oracle_agrees_with_its_probes(tmp_path_factory, seed):
    made = random_scenario(seed, ALL)
    files = made.write(tmp_path_factory.mktemp("fuzz"))
    read = scenario_files.ScenarioFiles(made.name, files).read()
    assert read.warnings == ()
    assert 0 < made.probes <= 204
    standing = {}
    for (step, desired), file in zip(read.states(), files, strict=True):
        standing = applied(standing, yaml.load_all(file.read_bytes(), yaml.CSafeLoader))
        found = cluster_views.read(standing)
        for probe in step.probes:
            if probe.spec.target.pod:
                continue  # its address here is a placeholder, which the oracle does not know
            to, source = (
                targets.resolve(probe, desired, desired_states.placeholder_addresses(desired)),
                probe.spec.source,
            )
            client = Client(source.node, source.pod, source.external_host)
            query = Query(client, to.address, to.port, probe.spec.protocol.value, to.via or "")
            answer = oracle.predict(found, query)
            assert answer.outcome is probe.spec.expect.outcome, probe.name
            assert set(probe.spec.expect.backends or ()) <= answer.backends
            assert (
                bool(probe.spec.expect.sticky) == answer.sticky
                or answer.outcome is not ProbeOutcome.CONNECTED
                or probe.spec.hold
            )


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_a_rate_of_connections_can_be_answered_in_every_step(tmp_path_factory, seed):
    """The lab resolves the target once, in the first step: later another machine may own the address."""
    made = random_scenario(seed, ALL)
    read = scenario_files.ScenarioFiles("seed", made.write(tmp_path_factory.mktemp("fuzz"))).read()
    _, first = next(iter(read.states()))
    addresses = desired_states.placeholder_addresses(first)
    queries = {}
    for probe in read.steps[0].probes:
        if probe.spec.rate and probe.spec.expect.outcome is ProbeOutcome.CONNECTED:
            to, source = targets.resolve(probe, first, addresses), probe.spec.source
            client = Client(source.node, source.pod, source.external_host)
            queries[probe.name] = Query(client, to.address, to.port)
    documents = {}
    for part in made.parts:
        documents = applied(documents, part.documents)
        for name, query in queries.items():
            assert oracle.predict(cluster_views.read(documents), query).outcome is ProbeOutcome.CONNECTED, name


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_addresses_and_node_ports_have_one_owner(seed):
    """Otherwise the expected endpoint would be ambiguous."""
    standing = {}
    for part in random_scenario(seed, ALL).parts:
        standing = applied(standing, part.documents)
        claims = Counter()
        for service in cluster_views.read(standing).services.values():
            if service.is_served and not service.metadata.name.startswith("noise"):
                claims.update((p.node_port, p.protocol) for p in service.spec.ports if p.node_port)
                external = {*service.external_ips, *service.served_load_balancer_ips, *service.cluster_ips}
                claims.update((ip, p.port, p.protocol) for p in service.spec.ports for ip in external)
        assert {claim for claim, count in claims.items() if count > 1} == set()


@settings(max_examples=6, deadline=None)
@given(SEEDS)
def test_a_feature_that_is_turned_off_does_not_appear(seed):
    made = random_scenario(
        seed, features.without(("ipv6", "udp", "sctp", "affinity", "ranges", "changes", "noise", "windows", "policies"))
    )
    assert len(made.parts) == 1
    assert not any(documents(made, kind) for kind in POLICIES)
    assert not any("noise" in str(document["metadata"]) for document in made.parts[0].documents)
    for service in documents(made, "Service"):
        assert service["spec"].keys().isdisjoint({"sessionAffinity", "loadBalancerSourceRanges"})
        assert {port.get("protocol", "TCP") for port in service["spec"]["ports"]} == {"TCP"}
    for node in documents(made, "Node"):
        assert all(
            ip_address(a["address"]).version == 4 for a in node["status"]["addresses"] if a["type"] != "Hostname"
        )


def test_leaving_out_a_feature_does_not_change_the_rest():
    whole, less = random_scenario(11, ALL), random_scenario(11, ALL - {"affinity"})
    assert documents(whole, "Node") == documents(less, "Node")
    assert documents(whole, "Pod")[:3] == documents(less, "Pod")[:3]


def test_a_feature_that_does_not_exist_is_named():
    with pytest.raises(features.UnknownFeatureError, match="there is no feature 'afinity'; the features are ipv6"):
        features.without(["afinity"])


@pytest.mark.parametrize("name", features.FEATURES)
def test_a_seed_is_found_for_every_feature(name):
    """It is the first seed that has the feature, so the ones before it lack it."""
    wanted = frozenset({name})
    found = seeds.first_with(wanted, 1, 1, ALL)[0]
    assert seeds.appear(wanted, found, ALL)
    assert not any(seeds.appear(wanted, before, ALL) for before in range(1, found))
    assert not seeds.appear(wanted, found, ALL - wanted)


def test_features_that_exclude_each_other_are_named(monkeypatch):
    monkeypatch.setattr(seeds, "MOST_SEEDS", 20)
    with pytest.raises(seeds.NoClusterError, match="no cluster has all of ipv6, windows: tried the 20 seeds from 1 on"):
        seeds.first_with(frozenset({"ipv6", "windows"}), 1, 1, ALL)


@pytest.mark.parametrize(("backends", "enough"), [(1, 4), (2, 25), (3, 43), (4, 61)])
def test_enough_connections_to_reach_every_backend(backends, enough):
    assert random_probes.connections(backends) == enough
    assert backends * (1 - 1 / backends) ** enough < 1e-6


def test_a_few_dozen_seeds_cover_every_case():
    """Every kind of client, address and outcome, and every field of a Service."""
    clients, addresses, outcomes, fields, states, actions = (Counter() for _ in range(6))
    for seed in range(60):
        made = random_scenario(seed, ALL)
        for probe in documents(made, "Probe"):
            clients.update(list(probe["spec"]["from"]))
            addresses.update(key for key in probe["spec"]["to"] if key not in {"port", "node", "family"})
            outcomes.update([probe["spec"]["expect"]["outcome"], probe["spec"].get("protocol", "TCP")])
            outcomes.update(list(probe["spec"]["expect"]))
        for service in documents(made, "Service"):
            fields.update(list(service["spec"]))
            fields.update([service["spec"].get("type"), service["spec"].get("externalTrafficPolicy")])
        for written in documents(made, "EndpointSlice"):
            if isinstance(written["endpoints"], list):
                states.update(str(e.get("conditions")) for e in written["endpoints"])
                states.update(hint for e in written["endpoints"] for hint in e.get("hints", {}))
        fields.update(field for kind in POLICIES for policy in documents(made, kind) for field in policy["spec"])
        actions.update(verb for action in documents(made, "Action") for verb in action["spec"])
        actions.update(gone["spec"]["kind"] for gone in documents(made, "Delete"))
    assert clients.keys() == {"pod", "node", "externalHost"}
    assert addresses.keys() == {"service", "nodePort", "loadBalancer", "externalIP", "address", "pod"}
    assert outcomes.keys() >= {
        "Connected",
        "Refused",
        "Timeout",
        "TCP",
        "UDP",
        "SCTP",
        "sticky",
        "backends",
        "clientAddress",
        "failures",
    }
    assert fields.keys() >= {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Local", "externalIPs"}
    assert fields.keys() >= {"sessionAffinity", "loadBalancerSourceRanges", "allocateLoadBalancerNodePorts"}
    assert fields.keys() >= {"trafficDistribution", "internalTrafficPolicy", "publishNotReadyAddresses", "clusterIPs"}
    assert fields.keys() >= {"policyTypes", "tier", "subject", "ingress", "egress"}
    assert len(states) >= 7, states
    assert actions.keys() >= {"killAgent", "restartAgent", "Pod", "Service", "EndpointSlice", "Node", *POLICIES}
