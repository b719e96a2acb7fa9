"""How often an agent checks the conditions of ClusterNetworkPolicies: each check lists all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from windlass.agent import cluster_writers
from windlass.agent.cluster_writers import CHECKS, ClusterWriter
from windlass.agent.pending_events import RENEWED
from windlass.cluster.objects import Problem


@dataclass
class WaitingStatus:
    """Says for how long the agent wants to wait, and ends the test there."""

    refusals: tuple[Problem, ...] = ()
    waits: list[float | None] = field(default_factory=list)
    wakes: list[bool] = field(default_factory=list)

    def report(self, *_: object) -> None:
        """No trouble is expected."""

    async def wait_until(self, holds: Callable[[], bool], seconds: float | None) -> bool:
        self.waits.append(seconds)
        self.wakes.append(holds())
        raise asyncio.CancelledError


async def waits(monkeypatch: pytest.MonkeyPatch, *, is_any: bool, nodes: int = 1) -> float | None:
    async def write_conditions(*_: object) -> bool:
        await asyncio.sleep(0)
        return is_any

    monkeypatch.setattr(cluster_writers, "write_conditions", write_conditions)
    monkeypatch.setattr(cluster_writers, "_stagger", lambda _: 0.0)
    status = WaitingStatus()
    cluster = SimpleNamespace(nodes=dict.fromkeys(range(nodes)), cluster_network_policies={"a": object()})
    writer = ClusterWriter(cast(Any, None), "node-1")
    with pytest.raises(asyncio.CancelledError):
        await writer._write_conditions(cast(Any, None), cast(Any, SimpleNamespace(status=status, cluster=cluster)))
    assert status.wakes == [False], "nothing has changed"
    (seconds,) = status.waits
    return seconds


async def test_without_a_condition_there_is_nothing_to_check_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await waits(monkeypatch, is_any=False) is None


async def test_all_agents_of_a_large_cluster_together_check_as_often_as_those_of_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for nodes, longest in ((3, RENEWED), (CHECKS, RENEWED), (5_000, RENEWED * 5_000 / CHECKS)):
        seconds = await waits(monkeypatch, is_any=True, nodes=nodes)
        assert seconds is not None
        assert 0.7 * longest <= seconds <= longest
