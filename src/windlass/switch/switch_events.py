"""What a bridge reports by itself, queued until the agent takes it."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from msgspec import Struct

from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.switch.message_streams import ConnectionLostError

_MOST_EVENTS = 10_000  # beyond that, packets are dropped; their senders repeat them


class GroupsChanged(Struct, frozen=True, gc=False):
    """Another client changed groups or meters of this bridge."""


class UnclaimedError(Struct, frozen=True):
    """The switch refused a message without a waiting caller, such as a packet-out."""

    error: OpenFlowError


SwitchEvent: TypeAlias = FlowUpdate | GroupsChanged | PacketIn | UnclaimedError


class EventQueue:
    def __init__(self) -> None:
        self._events: list[SwitchEvent] = []
        self._arrived = asyncio.Event()
        self._loss = ""  # why the connection is gone

    @property
    def is_full(self) -> bool:
        return len(self._events) >= _MOST_EVENTS

    def put(self, event: SwitchEvent) -> None:
        self._events.append(event)
        self._arrived.set()

    def drop_flow_updates(self) -> None:
        """Call it after a dump of all flows, which contains their results."""
        self._events = [event for event in self._events if not isinstance(event, FlowUpdate)]

    def fail(self, loss: str) -> None:
        self._loss = loss
        self._arrived.set()

    async def take(self) -> list[SwitchEvent]:
        """All events since the last call, at least one. Raises when the connection is lost and the queue is empty."""
        while not self._events:
            if self._loss:
                raise ConnectionLostError(self._loss)
            self._arrived.clear()
            await self._arrived.wait()
        events, self._events = self._events, []
        return events
