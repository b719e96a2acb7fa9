"""`windlass bench services` with few Services: it gives all figures. Times are not checked."""

from __future__ import annotations

import asyncio

import pytest

from switches import requires_ovs
from windlass.bench import service_states as states
from windlass.bench import services
from windlass.bench.service_runs import ServiceChangePlan
from windlass.cluster.catalogues import Catalogue
from windlass.nodes.states import run_to_end


@requires_ovs
def test_a_small_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "MANY": 30,
        "FEW": 3,
        "ROUNDS": 2,
        "PLAN": ServiceChangePlan(settling=0, count=5, gap=0.005),
    }.items():
        monkeypatch.setattr(services, name, value)
    said: list[str] = []
    report = asyncio.run(services.run(said.append))
    figures = {figure.name: figure for figure in report.figures}
    assert figures.keys() >= {
        "cold-sync-30x10",
        "one-change-30-p50",
        "one-change-30-p99",
        "one-change-30-5ms-apart-p99",
        "one-change-3-p50",
        "rss",
        "flows",
        "groups",
    }
    assert all(figure.value > 0 for figure in figures.values())
    assert figures["groups"].value == 30
    assert figures["cold-sync-30x10"].floor
    assert any("round 2 of 2" in sentence for sentence in said)


def test_all_services_and_endpoints_are_served():
    catalogue = Catalogue()
    assert len(run_to_end(catalogue.following(states.cluster(7, 3), states.SERVING_NODE))) == 7
    assert catalogue.problems == ()
    addresses = {
        endpoint.address
        for service in catalogue.services.values()
        for port in service.ports
        for endpoint in port.endpoints
    }
    assert len(addresses) == 7 * 3


def test_a_changed_slice_has_one_new_endpoint():
    before, after = states.cluster(4, 3).slices["default/service-00002-abcde"], states.changed_slice(2, 3, times=1)
    assert after.key == before.key
    kept = set(after.endpoints or ()) & set(before.endpoints or ())
    assert len(kept) == 2
    assert len(after.endpoints or ()) == 3
    assert states.changed_slice(2, 3, times=2) != after
