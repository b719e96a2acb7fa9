"""The oracle of the fuzzer agrees with the scenarios that people have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from applied_documents import applied

from windlass.lab.fuzz import cluster_views, oracle
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.scenarios import desired_states, scenario_files, targets
from windlass.lab.scenarios.objects import ProbeOutcome

SCENARIOS = Path(__file__).parents[2] / "scenarios"


WITH_SERVICES = ("services", "seed-000", "seed-001", "seed-002")


BY_HAND = {
    f"{folder}/{found.name}": found for folder in WITH_SERVICES for found in scenario_files.find(SCENARIOS / folder)
}


@pytest.mark.parametrize("name", BY_HAND)
def test_it_agrees_with_the_scenarios_of_the_repository(name):
    """Their probes are verified with real packets: the oracle must agree with them where it has an answer."""
    standing, by_hand = {}, BY_HAND[name]
    for (step, desired), file in zip(by_hand.read().states(), by_hand.files, strict=True):
        standing = applied(standing, by_hand.documents(file, []))
        found = cluster_views.read(standing)
        for probe in step.probes:
            if not (
                probe.spec.hold or probe.spec.rate or probe.spec.source_address or probe.spec.protocol.value == "ICMP"
            ):
                assert _agrees(probe, desired, found) == [], f"{step.name}: {probe.name}"


def _agrees(probe, desired, found):
    to = targets.resolve(probe, desired, desired_states.placeholder_addresses(desired))
    source, expect = probe.spec.source, probe.spec.expect
    client = Client(source.node, source.pod, source.external_host)
    query = Query(client, to.address, to.port, probe.spec.protocol.value, to.via or "")
    answer = oracle.predict(found, query)
    if answer is None:
        return []
    problems = [] if answer.outcome is expect.outcome else [f"{answer.outcome} for {expect.outcome}: {answer.why}"]
    backends = set(expect.backends or answer.backends)
    if not (backends <= answer.backends if answer.sticky else backends == answer.backends):
        problems.append(f"{sorted(answer.backends)} for {expect.backends}")
    if expect.client_address and answer.outcome is ProbeOutcome.CONNECTED:
        wanted = str(targets.seen_address(probe, to, desired) or _own(client, to, found))
        seen = {_own(client, to, found) if s == oracle.PRESERVED else s for s in answer.seen}
        problems += [] if seen == {wanted} else [f"seen as {sorted(seen)} for {wanted}"]
    return problems


def _own(client, to, found):
    """A Node's own address is its Node IP if it sends by its main NIC."""
    return str(found.nodes[client.node].addresses.get(to.family)) if client.node else oracle.PRESERVED
