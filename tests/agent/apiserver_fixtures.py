"""Fixtures: a real kube-apiserver, and an empty cluster in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from apiserver_agents import EVENTS, NODES, POLICIES, SERVICES, SLICES, APICluster

from control_planes import running_control_plane
from windlass.agent import cluster_writers, pending_events
from windlass.cluster.kubernetes.roles import rules
from windlass.lab.control.control_planes import ControlPlane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(tmp_path_factory) -> AsyncIterator[ControlPlane]:
    """One server for all tests, because it is slow to start."""
    async with running_control_plane(tmp_path_factory.mktemp("cp")) as plane:
        yield plane


@pytest_asyncio.fixture(loop_scope="module")
async def api(control_plane) -> AsyncIterator[APICluster]:
    """An empty cluster; the agents have the role of the product."""
    async with control_plane.connection() as connection:
        api = APICluster(control_plane, connection)
        await api.allow(rules())
        yield api
        for path in (NODES, SLICES, POLICIES, EVENTS):
            await api.delete(path)
        for one in (await api.get(SERVICES))["items"]:
            if one["metadata"]["name"] != "kubernetes":
                await api.delete(f"{SERVICES}/{one['metadata']['name']}")


@pytest.fixture
def short_delays(monkeypatch) -> None:
    """Shorten the delays of production."""
    monkeypatch.setattr(cluster_writers, "GRACE", 0.5)
    monkeypatch.setattr(pending_events, "SETTLED", 0.2)
