"""A small network of machines for the lab's tests, made by the lab's own code, and a reader of scenarios."""

from __future__ import annotations

import pytest
from labnet import CLIENT, FARAWAY, SERVER

from windlass.lab.network.underlays import Underlay
from windlass.lab.probing.arrivals import Arrivals
from windlass.lab.probing.servers import Servers
from windlass.lab.sandbox import labs
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.segments import segments


@pytest.fixture(scope="module")
def lab():
    with labs.opened() as lab:
        yield lab


@pytest.fixture(scope="module")
def underlay(lab):
    """Client and server on one wire, a third machine behind the router."""
    machines = (CLIENT, SERVER, FARAWAY)
    underlay = Underlay(lab, segments(machines))
    underlay.create()
    for machine in machines:
        underlay.plug(machine)
    return underlay


@pytest.fixture
def arrivals():
    return Arrivals()


@pytest.fixture
async def servers(arrivals):
    servers = Servers(arrivals)
    yield servers
    servers.close_all()


@pytest.fixture
def read(tmp_path):
    """Reads texts as the steps 1.yaml, 2.yaml, ... of one scenario."""

    def one(*steps):
        written = [tmp_path / f"{number}.yaml" for number, _ in enumerate(steps, start=1)]
        for file, text in zip(written, steps, strict=True):
            file.write_text(text)
        return scenario_files.ScenarioFiles("test", tuple(written)).read()

    return one
