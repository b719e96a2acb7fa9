"""The load generator in a network namespace of its own, with targets that answer and targets that do not."""

from __future__ import annotations

import os
import time

import pytest

from windlass.bench.loaded_runs import loading
from windlass.bench.loads import LoadPlan, LoadServer, LoadTarget
from windlass.lab.network import underlays
from windlass.lab.sandbox import labs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to create network namespaces")

UNUSED_PORT, UNREACHABLE = 8081, "192.0.2.1"


@pytest.fixture
async def load():
    with labs.opened() as lab:
        namespace = lab.namespace("host", "load")
        underlays.make_namespace(namespace)
        targets = (
            LoadTarget("answered", namespace, "127.0.0.1", 8080),
            LoadTarget("refused", namespace, "127.0.0.1", UNUSED_PORT),
            LoadTarget("unreachable", namespace, UNREACHABLE, 8080),  # the namespace has no route
        )
        plan = LoadPlan((LoadServer("web-1", namespace, 8080),), targets, per_second=100, held=2)
        async with loading(plan, lab.folder) as load:
            yield load


async def load_once(load, target):
    """Load this target until its first connections have ended."""
    await load.on([target])
    return await load.off()


async def test_new_connections_are_answered_and_held_ones_are_used(load):
    began = time.monotonic()
    tally = await load_once(load, "answered")
    whole = time.monotonic() - began
    assert tally.attempted > 0
    assert tally.answered == {"answered by web-1": tally.attempted}
    assert tally.failures == tally.broken == []
    assert 0 < tally.longest_wait < whole


async def test_a_refusal_is_a_failure_of_new_and_of_held_connections(load):
    tally = await load_once(load, "refused")
    assert {failure.what for failure in tally.failures} == {"refused"}
    assert len(tally.failures) == tally.attempted
    assert [failure.what for failure in tally.broken] == ["refused", "refused"]


async def test_an_error_of_the_system_is_reported_with_its_message(load):
    tally = await load_once(load, "unreachable")
    assert {failure.what for failure in tally.failures} == {"Network is unreachable"}


async def test_a_tally_covers_the_time_since_the_one_before(load):
    first = await load_once(load, "answered")
    second = await load_once(load, "answered")
    assert second.answered == {"answered by web-1": second.attempted}
    assert first.attempted > 0
    assert (await load.off()).attempted == 0
