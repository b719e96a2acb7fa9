"""The Node stays reachable if the agent is killed at any moment while it takes the NIC for the first time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from wires import Fault, World, world

from switches import requires_ovs

pytestmark = requires_ovs

CHANGES = 10  # there are at least so many


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as opened:
        yield opened


async def test_killed_at_any_change_of_the_host(node: World) -> None:
    for at in itertools.count(1):
        if not await node.attempt([("", Fault.KILLED, at)], far=True):
            break
    assert at > CHANGES


async def test_killed_when_the_addresses_have_moved(node: World) -> None:
    assert await node.attempt([("", Fault.KILLED_AFTER_MOVE, 0)], far=True)
