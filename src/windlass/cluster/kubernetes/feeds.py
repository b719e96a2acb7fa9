"""One kind of objects, followed: listed once, watched from there, listed again when the server has forgotten where.

Whatever happens to the connection or to the server, what was read stays until the server says otherwise.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from typing import NoReturn

import structlog

from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.connections import JSON, Connection, Refused, Unreachable
from windlass.cluster.kubernetes.credentials import NoAccess
from windlass.cluster.kubernetes.decoding import Event, Garbled, Happening
from windlass.cluster.kubernetes.holdings import Holding
from windlass.cluster.kubernetes.pauses import pause_after
from windlass.cluster.kubernetes.resources import Resource

_STEADY = 10.0  # seconds after which a connection counts as good: the next pause is the first again
_WATCH_SECONDS = range(300, 600)  # the server ends a watch then; not all of them at once
_PAGE = 500  # objects, where a list must come in pages
_ASK_AGAIN = 600.0  # seconds, for a kind that this server does not know

_GONE, _NOT_FOUND = 410, 404
_CANNOT_STREAM_LISTS = {400, 422}  # it does not know the parameters, or may not use them
_FROM_THE_FUTURE = "Too large resource version"  # said of a version that a server (restored from a backup?) never had


_log = structlog.get_logger(__name__)

_MOST_TRIGGERS = 10_000  # trigger times to keep until somebody takes them


class Restart(StrEnum):
    """Why a watch began anew."""

    ENDED = "ended"  # the server ended it in time, as it was asked to
    EXPIRED = "expired"  # the server has forgotten where we were
    FAILED = "failed"


class Forgotten(Exception):
    """The server does not know the version that we know: all objects must be read again."""


class OnlyWatches(Exception):
    """A list was asked for, and the first bookmark does not end it: the server does not know how (before 1.27)."""


class Returns:
    """Tells all feeds when one of them has reached the server again: no need to wait out their pauses."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Feed:
    def __init__(self, resource: Resource, changed: Callable[[], None]) -> None:
        """`changed` is called whenever something of this is new."""
        self.resource = resource
        self.holding = Holding(resource.kind)
        self.is_known = False  # was the list ever read to its end?
        self.trouble = ""  # why it cannot be followed now
        self.heard: float | None = None  # when the server last said something; None: it does not know this kind
        self.restarts: dict[str, int] = dict.fromkeys(Restart, 0)
        self._triggers: list[float] = []
        self._began = time.time()  # what was triggered before was there before
        self._changed = changed
        self._version = ""  # where to watch from; empty: to be listed
        self._has_answered = False  # in this attempt
        self._streams_lists = True  # as far as is known of this server
        self._is_garbled = False
        self._failures = 0
        self._next_attempt = 0.0

    async def follow(self, connection: Connection, returns: Returns) -> NoReturn:
        """Until cancelled. Called again, it goes on from where it was."""
        while True:
            await returns.wait(max(0.0, self._next_attempt - time.monotonic()))
            began, pause = time.monotonic(), 0.0
            self._has_answered = False
            reason = Restart.FAILED
            try:
                if self._version:
                    await self._stream(connection, returns)
                elif not (self._streams_lists and await self._stream(connection, returns, is_list=True)):
                    await self._list_pages(connection, returns)
                    await self._stream(connection, returns)
                reason = Restart.ENDED
            except Forgotten:
                self._version = ""
                reason = Restart.EXPIRED
            except Garbled as error:
                self._is_garbled = True
                self._tell(f"{self.resource.name}: the server says what cannot be understood: {error}")
            except Refused as error:
                pause = self._refused(error)
            except (Unreachable, NoAccess) as error:
                if not self._has_answered:  # cut off: what matters is whether it can be reached again
                    self._tell(str(error))
            was_steady = self._has_answered and time.monotonic() - began > _STEADY
            self._failures = 0 if was_steady else self._failures + 1
            self.restarts[reason] += 1
            _log.debug("watch starts again", resource=self.resource.name, reason=reason.value, trouble=self.trouble)
            self._next_attempt = time.monotonic() + max(pause, pause_after(self._failures))

    async def _stream(self, connection: Connection, returns: Returns, *, is_list: bool = False) -> bool:
        """Watches until the server ends it; before that, if asked for, it sends all that there is.

        False where this server can do that in pages only.
        """
        parameters = {
            **self.resource.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.choice(_WATCH_SECONDS)),  # noqa: S311 - it only spreads the load
            "resourceVersion": self._version,
        }
        if is_list:
            parameters |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        try:
            async with connection.stream(self.resource.path, parameters, self._format("")) as chunks:
                self._answers(returns)
                fresh = self.holding.anew() if is_list else None
                async for lines in decoding.line_batches(chunks):
                    fresh = self._take(map(decoding.event, lines), fresh)
                    self._understood()
                if fresh is not None:
                    raise Garbled("a list that ends before its last object")
        except OnlyWatches:
            self._streams_lists = False
            return False
        except Refused as error:
            if is_list and error.code in _CANNOT_STREAM_LISTS:
                return False
            raise
        return True

    def _take(self, events: Iterable[Event], fresh: Holding | None) -> Holding | None:
        """Into the list that is being read, until it is complete; then into what we hold."""
        for event in events:
            if event.type is Happening.ERROR:
                self._watch_ended(event)
            place = decoding.place(event.object) if fresh is None or event.type is Happening.BOOKMARK else None
            if fresh is None and place:
                self._advance(place.resource_version)
            into = self.holding if fresh is None else fresh
            match event.type:
                case Happening.ADDED | Happening.MODIFIED:
                    if into.put(event.object) and self.is_known:
                        self._note_trigger(place or decoding.place(event.object))
                case Happening.DELETED:
                    into.remove(event.object)
                case Happening.BOOKMARK if fresh and place:
                    if not place.ends_initial_events:
                        raise OnlyWatches
                    self._replace(fresh, place.resource_version)
                    fresh = None
        return fresh

    async def _list_pages(self, connection: Connection, returns: Returns) -> None:
        fresh, following = self.holding.anew(), ""
        while True:
            parameters = {**self.resource.selectors, "limit": str(_PAGE)} | (
                {"continue": following} if following else {}
            )
            content = await connection.request("GET", self.resource.path, parameters, accept=self._format("List"))
            page = decoding.page(content)
            self._answers(returns)
            for item in page.items or ():
                if fresh.put(item) and self.is_known:
                    self._note_trigger(decoding.place(item))
            following = page.metadata.continue_
            if not following:
                self._replace(fresh, page.metadata.resource_version)
                return

    def _format(self, suffix: str) -> str:
        metadata = f"{JSON};as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"
        return metadata if self.resource.is_metadata_only else JSON

    def take_triggers(self) -> list[float]:
        """The trigger times of what has changed since this was last called."""
        taken, self._triggers = self._triggers, []
        return taken

    def _note_trigger(self, place: decoding.Place) -> None:
        triggered = place.triggered
        if triggered is not None and triggered > self._began and len(self._triggers) < _MOST_TRIGGERS:
            self._triggers.append(triggered)

    def _replace(self, fresh: Holding, version: str) -> None:
        self.holding.replace(fresh)
        self._version = version
        self.is_known = True
        self._understood()

    def _advance(self, version: str) -> None:
        """Versions only grow. One that does not is of another history: a server that was restored, or a new one."""
        if version.isdecimal() and self._version.isdecimal() and int(version) < int(self._version):
            raise Forgotten
        self._version = version or self._version

    def _watch_ended(self, event: Event) -> None:
        told = decoding.status(event.object)
        self._version = ""  # whatever it was, a new list is right afterwards
        if told.code == _GONE:
            raise Forgotten
        raise Refused(f"{self.resource.name}: the server ended the watch: {told.message} ({told.code})", told.code)

    def _refused(self, error: Refused) -> float:
        """The pause that it asks for."""
        if error.code == _GONE or _FROM_THE_FUTURE in str(error):
            self._version = ""
        elif error.code == _NOT_FOUND and self.resource.is_optional:
            self._tell("")  # the server answers again
            self._replace(self.holding.anew(), "")
            self.heard = None
            return _ASK_AGAIN
        else:
            self._tell(str(error))
        return error.retry_after

    def _answers(self, returns: Returns) -> None:
        self._has_answered = True
        self.heard = time.monotonic()
        if self.trouble and not self._is_garbled:
            self._tell("")
            returns.ring()

    def _understood(self) -> None:
        self.heard = time.monotonic()
        if self._is_garbled:
            self._is_garbled = False
            self._tell("")
        self._changed()

    def _tell(self, sentence: str) -> None:
        if sentence != self.trouble:
            self.trouble = sentence
            self._changed()
