"""Follows one kind of objects: lists it, watches it from there, and lists it again when the version has expired.

Whatever happens to the connection or to the server, the objects that were read stay until the server changes them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import NoReturn

import structlog

from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.connections import JSON, APIConnection, RequestRefused, Unreachable, pause_after
from windlass.cluster.kubernetes.credentials import NoAccess
from windlass.cluster.kubernetes.decoding import EventType, Garbled, WatchEvent
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject

_STEADY = 10.0  # seconds that a connection must last to reset the backoff
_WATCH_SECONDS = range(300, 600)  # the requested duration of a watch; random, to spread the reconnects
_PAGE = 500  # objects in a page of a list
_ASK_AGAIN = 60.0  # seconds between attempts to list a kind that the server does not know
# A server that starts may not know a custom resource for a moment. Its objects stay in use until the third answer.
_ASK_SOON = 5.0  # seconds between these attempts
_BELIEVED_AFTER = 2 * _ASK_SOON

_GONE, _NOT_FOUND, _FORBIDDEN = 410, 404, 403
_CANNOT_STREAM_LISTS = {400, 422}  # the server does not know the parameters, or has them disabled
_FROM_THE_FUTURE = "Too large resource version"  # the server never had it: it may have been restored from a backup
_MOST_TRIGGERS = 10_000  # how many trigger times are kept until `take_triggers`

_log = structlog.get_logger(__name__)


class Restart(StrEnum):
    """Why a watch started again."""

    ENDED = "ended"  # after the requested time
    EXPIRED = "expired"  # the server no longer has the version to continue from
    FAILED = "failed"


class VersionExpired(Exception):
    """The server does not have the version to continue from: all objects must be listed again."""


class CannotStreamLists(Exception):
    """The first bookmark does not end the list: the server (before 1.27) ignored the request for one."""


class Recovery:
    """Ends the pauses of all feeds when one of them has reached the server again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Feed:
    def __init__(
        self,
        kind: WatchedKind[APIObject],
        node_name: str,
        changed: Callable[[], None],
        namespace: str = "",
        remembered: Callable[[], Mapping[str, APIObject] | None] = lambda: None,
    ) -> None:
        """`changed` is called after each change of the objects or of `trouble`. Without `namespace`: all namespaces.

        `remembered`: the objects that an earlier agent saved, for a kind that may start with those.
        """
        self.kind = kind
        self._remembered = remembered
        self._path = kind.path_in(namespace) if namespace else kind.path
        self.store = ObjectStore(kind)
        self.is_listed = False  # whether a list was ever read to its end
        self.trouble = ""  # why the kind cannot be followed now
        self.heard: float | None = None  # when the server last sent anything; None: it does not know this kind
        self.restarts: dict[str, int] = dict.fromkeys(Restart, 0)
        self._triggers: list[float] = []
        self._began = time.time()  # changes that were triggered earlier were not observed by this feed
        self._selectors = kind.selectors(node_name)
        self._changed = changed
        self._version = ""  # where to watch from; empty: list first
        self._has_answered = False  # whether the server answered in this attempt
        self._streams_lists = True  # until the server shows that it cannot
        self._is_garbled = False
        self._unknown_since: float | None = None  # since when the server says that it does not know this kind
        self._failures = 0
        self._next_attempt = 0.0

    async def follow(self, connection: APIConnection, recovery: Recovery) -> NoReturn:
        """Runs until cancelled. A second call continues where the first one ended."""
        while True:
            await recovery.wait(max(0.0, self._next_attempt - time.monotonic()))
            began, pause = time.monotonic(), 0.0
            self._has_answered = False
            reason = Restart.FAILED
            try:
                if self._version:
                    await self._stream(connection, recovery)
                elif not (self._streams_lists and await self._stream(connection, recovery, is_list=True)):
                    await self._list_pages(connection, recovery)
                    await self._stream(connection, recovery)
                reason = Restart.ENDED
            except VersionExpired:
                self._version = ""
                reason = Restart.EXPIRED
            except Garbled as error:
                self._version = ""  # it may be that of a change that was lost
                self._is_garbled = True
                self._set_trouble(f"{self.kind.resource}: the server sends data that cannot be decoded: {error}")
            except RequestRefused as error:
                pause = await self._refused(error)
            except (Unreachable, NoAccess) as error:
                if not self._has_answered:  # otherwise the connection was lost, and the next attempt decides
                    self._set_trouble(str(error))
            was_steady = self._has_answered and time.monotonic() - began > _STEADY
            self._failures = 0 if was_steady else self._failures + 1
            self.restarts[reason] += 1
            _log.debug("watch starts again", resource=self.kind.resource, reason=reason.value, trouble=self.trouble)
            self._next_attempt = time.monotonic() + max(pause, pause_after(self._failures))

    async def _stream(self, connection: APIConnection, recovery: Recovery, *, is_list: bool = False) -> bool:
        """Watch until the server ends it. With `is_list` the server first sends all existing objects.

        Returns False if this server can only list in pages.
        """
        parameters = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.choice(_WATCH_SECONDS)),  # noqa: S311 - it only spreads the load
            "resourceVersion": self._version,
        }
        if is_list:
            parameters |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        try:
            async with connection.stream(self._path, parameters, self._format("")) as chunks:
                self._answered(recovery)
                listed = self.store.emptied() if is_list else None
                async for lines in decoding.line_batches(chunks):
                    listed = self._take(map(decoding.event, lines), listed)
                    self._understood()
                if listed is not None:
                    raise Garbled("a list that ends before its last object")
        except CannotStreamLists:
            self._streams_lists = False
            return False
        except RequestRefused as error:
            if is_list and error.code in _CANNOT_STREAM_LISTS:
                return False
            raise
        return True

    def _take(self, events: Iterable[WatchEvent], listed: ObjectStore | None) -> ObjectStore | None:
        """Put events into the list that is being read until it is complete, then into the store."""
        for event in events:
            if event.type is EventType.ERROR:
                self._watch_ended(event)
            meta = decoding.object_meta(event.object) if listed is None or event.type is EventType.BOOKMARK else None
            if listed is None and meta:
                self._advance(meta.resource_version)
            into = self.store if listed is None else listed
            match event.type:
                case EventType.ADDED | EventType.MODIFIED:
                    if into.put(event.object) and self.is_listed:
                        self._note_trigger(meta or decoding.object_meta(event.object))
                case EventType.DELETED:
                    into.remove(event.object)
                case EventType.BOOKMARK if listed and meta:
                    if (meta.annotations or {}).get("k8s.io/initial-events-end") != "true":
                        raise CannotStreamLists
                    self._replace(listed, meta.resource_version)
                    listed = None
        return listed

    async def _list_pages(self, connection: APIConnection, recovery: Recovery) -> None:
        listed, following = self.store.emptied(), ""
        while True:
            parameters = {**self._selectors, "limit": str(_PAGE)} | ({"continue": following} if following else {})
            content = await connection.request("GET", self._path, parameters, accept=self._format("List"))
            page = decoding.page(content)
            self._answered(recovery)
            for item in page.items or ():
                if listed.put(item) and self.is_listed:
                    self._note_trigger(decoding.object_meta(item))
            following = page.metadata.continue_
            if not following:
                self._replace(listed, page.metadata.resource_version)
                return

    def _format(self, suffix: str) -> str:
        metadata = f"{JSON};as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1"
        return metadata if self.kind.is_metadata_only else JSON

    def take_triggers(self) -> list[float]:
        """The trigger times of the changes since the last call."""
        taken, self._triggers = self._triggers, []
        return taken

    def _note_trigger(self, meta: decoding.ObjectMeta) -> None:
        triggered = meta.triggered
        if triggered is not None and triggered > self._began and len(self._triggers) < _MOST_TRIGGERS:
            self._triggers.append(triggered)

    def _replace(self, listed: ObjectStore, version: str) -> None:
        self.store.replace(listed)
        self._version = version
        self.is_listed = True
        self._understood()

    def _advance(self, version: str) -> None:
        """Versions only grow. A smaller one means that the server was replaced, or restored from a backup."""
        if version.isdecimal() and self._version.isdecimal() and int(version) < int(self._version):
            raise VersionExpired
        self._version = version or self._version

    def _watch_ended(self, event: WatchEvent) -> None:
        status = decoding.status(event.object)
        self._version = ""  # a new list is correct, whatever the reason
        if status.code == _GONE:
            raise VersionExpired
        sentence = f"{self.kind.resource}: the server ended the watch: {status.message} ({status.code})"
        raise RequestRefused(sentence, status.code)

    async def _refused(self, error: RequestRefused) -> float:
        """Handle the refusal. Returns the seconds to wait that the server requests."""
        is_unknown = error.code == _NOT_FOUND and self.kind.is_optional
        if not is_unknown:
            self._unknown_since = None
        if (is_unknown or error.code == _FORBIDDEN) and self.kind.is_remembered and not self.is_listed:
            await self._begin_with_remembered()
        if error.code == _GONE or _FROM_THE_FUTURE in str(error):
            self._version = ""
        elif is_unknown:
            return self._unknown_kind(error)
        else:
            self._set_trouble(str(error))
        return error.retry_after

    def _unknown_kind(self, error: RequestRefused) -> float:
        """Remove the objects, if there are any, only if the server keeps saying that it does not know their kind."""
        now = time.monotonic()
        self._unknown_since = self._unknown_since or now
        if self.store.objects and now - self._unknown_since < _BELIEVED_AFTER:
            self._version = ""  # by a list the server shows that it knows the kind again
            self._set_trouble(str(error))
            return _ASK_SOON
        self._set_trouble("")  # the server answers
        self._replace(self.store.emptied(), "")
        self.heard = None
        return _ASK_AGAIN

    async def _begin_with_remembered(self) -> None:
        if (objects := await asyncio.to_thread(self._remembered)) is not None:
            self.store.remember(objects)
            self.is_listed = True
            self._changed()

    def _answered(self, recovery: Recovery) -> None:
        self._has_answered = True
        self._unknown_since = None
        self.heard = time.monotonic()
        if self.trouble and not self._is_garbled:
            self._set_trouble("")
            recovery.announce()

    def _understood(self) -> None:
        self.heard = time.monotonic()
        if self._is_garbled:
            self._is_garbled = False
            self._set_trouble("")
        self._changed()

    def _set_trouble(self, sentence: str) -> None:
        if sentence != self.trouble:
            self.trouble = sentence
            self._changed()
