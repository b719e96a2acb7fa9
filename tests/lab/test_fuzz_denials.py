"""`lab fuzz` opens connections at a constant rate only if policies deny them at every moment, also during a change."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from applied_documents import applied
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.lab.fuzz import cluster_views, features, lasting_denials, oracle, seeds
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import identity
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.fuzz.random_scenarios import random_scenario
from windlass.lab.scenarios.objects import ProbeOutcome

ALL = features.without(())


def node(number):
    status = {"addresses": [{"type": "InternalIP", "address": f"10.176.25.{number}"}]}
    return {
        "kind": "Node",
        "metadata": {"name": f"node-{number}"},
        "spec": {"podCIDRs": [f"172.16.{number}.0/24"]},
        "status": status,
    }


def pod(name, address, number, ports=(), **labels):
    containers = [{"ports": [{"containerPort": port} for port in ports]}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": f"node-{number}", "containers": containers},
        "status": {"podIPs": [{"ip": address}]},
    }


def closed(name, direction="Ingress", **selected):
    """A policy that allows nothing in this direction."""
    spec = {"podSelector": {"matchLabels": selected}, "policyTypes": [direction]}
    return {"kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def client(**labels):
    return pod("client", "172.16.1.5", 1, **labels)


def server(number=2, **labels):
    return pod("server", "172.16.2.5", number, (80,), app="server", **labels)


def rates(*steps):
    views = [cluster_views.read({identity(one): one for one in (node(1), node(2), *step)}) for step in steps]
    return list(lasting_denials.rated(Dice("rates"), views, set()))


DENIED = closed("a", app="server")
ENDS = (client(), server())


def test_a_connection_that_is_denied_is_opened_at_a_constant_rate():
    (probe,) = rates((*ENDS, DENIED), (*ENDS, DENIED))
    assert probe["metadata"]["name"] == "denied-1-client-to-server-tcp"
    assert probe["spec"]["from"] == {"pod": "default/client"}
    assert probe["spec"]["to"] == {"pod": "default/server", "port": 80, "family": "IPv4"}
    assert (probe["spec"]["rate"], probe["spec"]["expect"]) == (10, {"outcome": "Timeout"})


@pytest.mark.parametrize(
    "after",
    [
        (*ENDS, closed("a")),
        (*ENDS, DENIED, closed("b", app="client")),
        (client(tier="front"), server(tier="back"), DENIED),
        (*ENDS, pod("other", "172.16.1.6", 1), DENIED),
    ],
    ids=["another selector", "another policy", "other labels", "another Pod"],
)
def test_a_change_that_denies_it_at_every_moment(after):
    assert rates((*ENDS, DENIED), after)


@pytest.mark.parametrize(
    "after",
    [
        ENDS,
        (*ENDS, closed("b", app="server")),
        (*ENDS, closed("b", "Egress")),
        (client(), server(number=1), DENIED),
        (server(), DENIED),
    ],
    ids=["no policy", "another policy instead", "another direction instead", "the server moves", "the client ends"],
)
def test_a_change_that_may_allow_it_at_some_moment(after):
    """An agent may know that the first policy is deleted before it knows the second one."""
    assert not rates((*ENDS, DENIED), after)


def test_labels_that_move_a_pod_from_one_policy_to_another():
    by_tier = (closed("a", tier="front"), closed("b", tier="back"))
    assert rates((client(), server(tier="front"), *by_tier), (client(), server(tier="back"), *by_tier))
    without_overlap = (client(), server(tier="back"), closed("a", tier="front"), closed("b", tier="back"))
    assert not rates((client(), server(tier="front"), closed("a", tier="front")), without_overlap)


def test_the_two_directions_may_change_in_turn():
    """In each step one of them stays."""
    egress = closed("b", "Egress")
    assert rates((*ENDS, DENIED), (*ENDS, DENIED, egress), (*ENDS, egress))


def test_a_connection_gets_only_one_rate():
    views = [cluster_views.read({identity(one): one for one in (node(1), node(2), *ENDS, DENIED)})]
    known = set()
    assert len(list(lasting_denials.rated(Dice("rates"), views, known))) == 1
    assert not list(lasting_denials.rated(Dice("rates"), views, known))


@pytest.mark.parametrize(("name", "verb"), [("agents", "killAgent"), ("switches", "restartSwitch")])
def test_denied_connections_are_opened_while_agents_and_switches_restart(name, verb):
    """They begin before a change: none begins in the last step."""
    found = seeds.first_with(frozenset({name, "policies", "denials"}), 1, 1, ALL)[0]
    *parts, last = random_scenario(found, ALL).parts
    assert any(denials(part) for part in parts)
    assert not denials(last)
    assert any(verb in one["spec"] for part in (*parts, last) for one in part.documents if one["kind"] == "Action")


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9))
def test_no_single_change_of_a_step_allows_a_denied_rate(seed):
    """The oracle denies it in every step, and also after each changed object alone is applied."""
    made = random_scenario(seed, ALL)
    standing, denied = {}, {}
    for part in made.parts:
        alone = [applied(standing, [one]) for one in part.documents if one["kind"] not in {"Probe", "Action"}]
        after = applied(standing, part.documents)
        for name, query in denied.items():
            for documents in (*alone, after):
                assert oracle.predict(cluster_views.read(documents), query).outcome is ProbeOutcome.TIMEOUT, name
        standing = after
        denied |= queries(part, cluster_views.read(standing))


def queries(part, view):
    found = {}
    for probe in denials(part):
        spec, to = probe["spec"], probe["spec"]["to"]
        address = next(one for one in view.pods[to["pod"]].fixed_addresses if f"IPv{one.version}" == to["family"])
        source, protocol = Client(pod=spec["from"]["pod"]), spec.get("protocol", "TCP")
        found[f"{part.name} {probe['metadata']['name']}"] = Query(source, ip_address(address), to["port"], protocol)
    return found


def denials(part):
    probes = [one for one in part.documents if one["kind"] == "Probe" and "rate" in one["spec"]]
    return [one for one in probes if one["spec"]["expect"]["outcome"] == "Timeout"]
