"""The load of `windlass bench continuity`, in a network namespace of its own: where somebody answers, and where not."""

from __future__ import annotations

import os

import pytest

from windlass.bench.load_processes import loading
from windlass.bench.loads import Frontend, Plan, Server
from windlass.lab.network import underlays
from windlass.lab.sandbox import labs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces are made")

NOBODY, BLACK_HOLE = 8081, "192.0.2.1"


@pytest.fixture
async def load():
    with labs.opened() as lab:
        namespace = lab.namespace("host", "load")
        underlays.make_namespace(namespace)
        frontends = (
            Frontend("answered", namespace, "127.0.0.1", 8080),
            Frontend("refused", namespace, "127.0.0.1", NOBODY),
            Frontend("unreachable", namespace, BLACK_HOLE, 8080),  # the namespace has no route
        )
        plan = Plan((Server("web-1", namespace, 8080),), frontends, per_second=100, held=2)
        async with loading(plan, lab.folder) as load:
            yield load


async def some(load, frontend):
    """Loads it until something has come of it."""
    await load.on([frontend])
    return await load.off()


async def test_new_connections_are_answered_and_held_ones_are_used(load):
    tally = await some(load, "answered")
    assert tally.attempted > 0
    assert tally.answered == {"answered by web-1": tally.attempted}
    assert tally.failures == tally.broken == ()
    assert 0 < tally.longest_wait < 1


async def test_a_refusal_is_a_failure_of_new_and_of_held_connections(load):
    tally = await some(load, "refused")
    assert {failure.what for failure in tally.failures} == {"refused"}
    assert len(tally.failures) == tally.attempted
    assert [failure.what for failure in tally.broken] == ["refused", "refused"]


async def test_what_the_system_refuses_is_told_in_its_words(load):
    tally = await some(load, "unreachable")
    assert {failure.what for failure in tally.failures} == {"Network is unreachable"}


async def test_a_tally_is_of_the_time_since_the_one_before(load):
    first = await some(load, "answered")
    second = await some(load, "answered")
    assert second.answered == {"answered by web-1": second.attempted}
    assert first.attempted > 0
    assert (await load.off()).attempted == 0
