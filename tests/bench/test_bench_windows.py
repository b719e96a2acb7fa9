"""`windlass bench windows` with few Services: it gives all figures. Times are not checked."""

from __future__ import annotations

import asyncio

import pytest

from switches import requires_ovs
from windlass.bench import bench_nodes, node_runs, windows
from windlass.bench.agent_runs import in_new_process
from windlass.bench.node_runs import StartAndChanges, Workload
from windlass.lab.sandbox.labs import LabError
from windlass.lab.wine.wine_machines import WindowsPrograms

SMALL = Workload(services=20, endpoints=3, changes=4, settling=0.0)


@requires_ovs
def test_the_measurement_on_linux():
    async def measured() -> StartAndChanges:
        async with bench_nodes.standing() as (config, namespace):
            return await in_new_process(node_runs.on_linux, config, namespace, SMALL)

    found = asyncio.run(measured())
    assert found.start > 0
    assert len(found.changes) == SMALL.changes
    assert found.flows > SMALL.services


@requires_ovs
def test_a_small_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch):
    try:
        WindowsPrograms.default().check()
    except LabError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(windows, "WORKLOAD", SMALL)
    monkeypatch.setattr(windows, "ROUNDS", 1)
    report = asyncio.run(windows.run(lambda _: None))
    figures = {figure.name: figure for figure in report.figures}
    assert figures.keys() == {"agent-start-20x3", "one-change-20-p50", "one-change-20-p99", "flows"}
    assert all(figure.value > 0 and figure.floor for figure in figures.values())
