"""A small network of virtual machines for the lab's tests, created and removed by the lab's own code."""

from __future__ import annotations

import pytest
from labnet import CLIENT, FARAWAY, SERVER

from windlass.lab.network.underlays import Underlay
from windlass.lab.probing.arrivals import Arrivals
from windlass.lab.probing.servers import Servers
from windlass.lab.sandbox import labs
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
