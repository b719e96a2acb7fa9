"""The queue of the host: owners request and release items in any order, and the host holds the requested ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.agent.hosting import Hosting
from windlass.host.plans import HostChange, HostNames, HostPlan, NodePort, Route
from windlass.host.protocol import HostError
from windlass.model.families import Family
from windlass.model.services import Protocol
from windlass.program import Owner, OwnerKind

NAMES = HostNames("eth0")
A, B = Owner(OwnerKind.SERVICE, "default/a"), Owner(OwnerKind.SERVICE, "default/b")


def ports(*numbers: int) -> frozenset[NodePort]:
    return frozenset(NodePort(Family.IPV4, Protocol.TCP, number) for number in numbers)


class MemoryHost:
    """A host that keeps its items in memory."""

    def __init__(self) -> None:
        self.items: set[object] = set()
        self.changes: list[HostChange] = []
        self.free = asyncio.Event()
        self.free.set()
        self.refusal = ""

    async def installed(self, _: HostNames) -> HostPlan:
        await self.free.wait()
        if self.refusal:
            raise HostError(self.refusal)
        return HostPlan(items=frozenset(self.items))

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        await self.free.wait()
        if self.refusal:
            raise HostError(self.refusal)
        self.changes.append(change)
        self.items = (self.items - change.removed) | change.added
        return ()


class Queue:
    def __init__(self, host: MemoryHost) -> None:
        self.host = host
        self.problems: dict[object, tuple[str, ...]] = {}
        self.looks = 0
        self.hosting = Hosting(host, lambda area, problems: self.problems.update({area: tuple(problems)}), self._look)

    def _look(self) -> None:
        self.looks += 1


@asynccontextmanager
async def queue() -> AsyncIterator[Queue]:
    one = Queue(MemoryHost())
    working = asyncio.create_task(one.hosting.work())
    try:
        yield one
    finally:
        working.cancel()
        await asyncio.wait([working])


async def test_items_are_added_on_request_and_removed_on_release():
    async with queue() as one:
        await one.hosting.ask({A: ports(1, 2)})
        assert one.host.items == ports(1, 2)
        leaving, removed = one.hosting.give_up({A: ports(2, 3)})
        await removed
        assert leaving == {A}
        assert one.host.items == ports(2), "the new item comes when the flows are there"
        await one.hosting.ask({A: ports(2, 3)})
        assert one.host.items == ports(2, 3)


async def test_an_item_that_another_owner_has_or_takes_over_stays():
    async with queue() as one:
        await one.hosting.ask({A: ports(1), B: ports(2)})
        leaving, removed = one.hosting.give_up({A: ports(), B: ports(1, 2)})
        await removed
        assert leaving == frozenset()
        assert one.host.items == ports(1, 2)
        await one.hosting.ask({A: ports(), B: ports(1, 2)})
        assert one.host.items == ports(1, 2)
        assert len(one.host.changes) == 1, "the host was not touched again"


async def test_changes_that_arrive_while_the_host_is_busy_are_applied_together():
    async with queue() as one:
        one.host.free.clear()
        first = one.hosting.ask({A: ports(1)})
        await asyncio.sleep(0)
        second, third = one.hosting.ask({A: ports(1, 2)}), one.hosting.ask({B: ports(3)})
        one.host.free.set()
        await asyncio.gather(first, second, third)
        assert len(one.host.changes) == 2
        assert one.host.items == ports(1, 2, 3)


async def test_a_comparison_removes_items_that_no_owner_requests():
    async with queue() as one:
        stale = Route(ip_network("10.0.0.0/8"), "windlass-gw0")
        one.host.items = {stale, *ports(9)}
        await one.hosting.ask({A: ports(1)})
        shared = HostPlan(items=ports(7))
        await one.hosting.hold(NAMES, shared, {B: ports(2)})
        assert one.host.items == ports(1, 2, 7)


async def test_refused_items_are_reported_and_retried():
    async with queue() as one:
        one.host.refusal = "no"
        await one.hosting.ask({A: ports(1)})
        assert list(one.problems.values()) == [("no",)]
        assert one.looks == 1
        one.host.refusal = ""
        await one.hosting.hold(NAMES, HostPlan(), {})
        assert one.host.items == ports(1)


async def test_a_refused_comparison_is_an_error_of_the_pass():
    async with queue() as one:
        one.host.refusal = "no"
        with pytest.raises(HostError, match="no"):
            await one.hosting.hold(NAMES, HostPlan(), {})


wishes = st.dictionaries(st.sampled_from([A, B]), st.sets(st.integers(1, 4)).map(lambda numbers: ports(*numbers)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(wishes, st.booleans(), st.booleans())))
def test_the_host_finally_holds_the_items_of_all_owners(steps):
    """With and without awaiting each step, and with full comparisons in between."""

    async def run() -> None:
        async with queue() as one:
            wanted: dict[Owner, frozenset[NodePort]] = {}
            for wish, is_awaited, compares in steps:
                wanted |= wish
                _, removed = one.hosting.give_up(wish)
                asked = one.hosting.ask(wish)
                if compares:
                    await one.hosting.hold(NAMES, HostPlan(), {})
                if is_awaited:
                    await asyncio.gather(removed, asked)
            await asyncio.gather(one.hosting.hold(NAMES, HostPlan(), {}))
            assert one.host.items == frozenset().union(*wanted.values())

    asyncio.run(run())
