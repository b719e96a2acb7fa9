"""Changes of groups that are sent some time after their cause: deletion, and rotation for session affinity.

Both read what is installed when they run, not when they were scheduled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TypeAlias

from windlass.openflow.wire import groups as group_wire
from windlass.switch.changes import DeleteGroup, ModifyGroup, SwitchStep
from windlass.switch.ownership import FlowOwnership

# Seconds that a group stays after the last flow that leads to it has gone. The datapath still uses its cached flows for
# up to half a second; without the group it would drop the first packets of connections.
GROUP_STAYS = 5.0

ROTATION_DELAY = 1.0  # seconds in which groups are collected, to be rotated together

# Runs the function when no other change is under way, and sends the steps that it returns; if the switch is away, it
# does nothing.
Send: TypeAlias = Callable[[Callable[[], Sequence[SwitchStep]]], Awaitable[None]]


class GroupRetirement:
    def __init__(self, ownership: FlowOwnership, send: Send) -> None:
        self._ownership = ownership
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_rotate: set[int] = set()

    def postpone(self, steps: Iterable[SwitchStep]) -> Iterator[SwitchStep]:
        """The steps without those that delete groups: they follow after `GROUP_STAYS`, if still needed then."""
        deletions: list[DeleteGroup] = []
        for step in steps:
            if isinstance(step, DeleteGroup):
                deletions.append(step)
            else:
                yield step
        if deletions:
            self._start(self._delete(deletions), "delete groups")

    def rotate(self, group: int) -> None:
        """Have a client whose affinity entry has expired select an endpoint again: see `learned`."""
        if not self._to_rotate:
            self._start(self._rotate(), "rotate groups")
        self._to_rotate.add(group)

    async def settled(self) -> None:
        """Returns when all pending changes have been sent."""
        await asyncio.gather(*self._tasks)

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, groups: Sequence[DeleteGroup]) -> None:
        await asyncio.sleep(GROUP_STAYS)
        ownership = self._ownership
        await self._send(
            lambda: [
                step
                for step in groups
                if step.identity in ownership.installed.groups and not ownership.is_requested(step.identity)
            ]
        )

    async def _rotate(self) -> None:
        await asyncio.sleep(ROTATION_DELAY)
        identities, self._to_rotate = self._to_rotate, set()
        ownership = self._ownership
        await self._send(
            lambda: [
                ModifyGroup(group_wire.turned(group))
                for identity in identities
                if (group := ownership.installed.groups.get(identity)) is not None
            ]
        )
