"""`windlass bench continuity`: its figures, and a short run of it. Times are not checked."""

from __future__ import annotations

import asyncio

import pytest

from switches import requires_ovs
from windlass.bench import continuity
from windlass.bench import continuity_clusters as objects
from windlass.bench.loaded_runs import LoadedPhase, figures_of, sentences, summary
from windlass.bench.loads import Failure, Tally, merged
from windlass.cluster.catalogues import Catalogue
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.manifests import Manifests
from windlass.lab.control import manifests
from windlass.model.families import Family
from windlass.nodes.states import run_to_end

LOST = Failure("node-port", "no answer", began=12.5, ended=13.5, port=40000)


def test_tallies_of_consecutive_periods_are_merged():
    first = Tally(attempted=3, answered={"cluster-ip by web-1": 3}, longest_gap=0.02, longest_lag=0.5)
    second = Tally(attempted=2, failures=[LOST], answered={"cluster-ip by web-1": 1}, longest_gap=0.04)
    assert merged([first, second]) == Tally(5, [LOST], [], {"cluster-ip by web-1": 4}, 0.04, 0.0, 0.5)


def test_the_floor_of_each_figure_is_the_quiet_phase():
    quiet = LoadedPhase("quiet", 20, Tally(attempted=8000, longest_gap=0.025))
    endpoints = LoadedPhase("endpoints", 40, Tally(attempted=16000, failures=[LOST], longest_gap=0.05))
    figures = {figure.name: figure for figure in figures_of(endpoints, quiet)}
    assert figures["endpoints-attempted"].value == 16000
    assert (figures["endpoints-failed"].value, figures["endpoints-failed"].floor) == (1, 0)
    assert figures["endpoints-failed"].ratio is None
    assert figures["endpoints-held-longest-gap"].ratio == 2
    worst = {figure.name: figure for figure in summary(tuple(figures.values()))}
    assert (worst["failed"].value, worst["held-longest-gap"].value) == (1, 50)


def test_a_failure_is_reported_with_the_event_before_it():
    events = ((10.0, "kill 1"), (12.0, "converged again after kill 1"), (13.0, "kill 2"))
    said = list(sentences(LoadedPhase("killed-0", 40, Tally(attempted=9, failures=[LOST]), events)))
    assert said[0].startswith("killed-0: 1 of 9 new connections failed in 40 s")
    assert said[1] == (
        "  node-port from port 40000: no answer after 1.000 s; it began 0.500 s after: converged again after kill 1"
    )


def test_agents_read_the_service_in_all_its_forms(tmp_path):
    scenario = objects.scenario()
    ((_, desired),) = scenario.states()
    node = ServingNode(objects.NODE, zone="", families=(Family.IPV4,))
    for form in objects.FORMS:
        manifests.write(tmp_path, manifests.render(desired.after([objects.service(form)], [], []), {}))
        objects.add_services(tmp_path, 5)
        catalogue = Catalogue()
        run_to_end(catalogue.following(Manifests(tmp_path).read(), node))
        assert catalogue.problems == ()
        assert len(catalogue.services) == 6
        (port,) = catalogue.services["default/web"].ports
        assert len(port.endpoints) == 2
        assert (len(port.frontends) > 1) is form.has_node_port


@requires_ovs
@pytest.mark.timeout(300)  # three starts of an agent
def test_a_short_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch):
    small = {"PER_SECOND": 20, "HELD": 1, "KILLS": 1, "SECONDS_AFTER_A_KILL": 0.2, "SECONDS_OF_QUIET": 0.5}
    small |= {"SECONDS_OF_CHANGES": 2.0, "PACE": 0.5, "SERVICES": (7,)}
    for name, value in small.items():
        monkeypatch.setattr(continuity, name, value)
    said: list[str] = []
    figures = {figure.name: figure for figure in asyncio.run(continuity.run(said.append)).figures}
    for phase in ("endpoints", "policies", "network-policies", "killed-0", "killed-7"):
        assert figures[f"{phase}-attempted"].value > 20
        assert figures[f"{phase}-failed"].floor is not None
        assert any(sentence.startswith(f"{phase}: ") for sentence in said)
    assert figures["killed-7-resync-p50"].floor == figures["killed-0-resync-p50"].value
    assert figures["held-longest-gap"].value > 0
