"""The bytes of lists and watches to typed objects; what nobody uses is dropped on the way. Pure.

An object of the wrong shape is `Malformed` and costs only itself. Bytes that are no answer of an API server are
`Garbled`: nothing after them can be trusted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from enum import Enum

import msgspec
from msgspec import Raw, Struct

from windlass.cluster.objects import Malformed, Watched, field_sentence

_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"


class Garbled(Exception):
    """Not what an API server says."""


class Happening(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing happened, up to this version
    ERROR = "ERROR"  # the object says why the server ends the watch


class Event(Struct, frozen=True, gc=False):
    type: Happening
    object: Raw


class ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Raw, ...] | None = None


class Place(Struct, frozen=True, rename="camel", gc=False):
    """Of an object: its name, and where in the history of the cluster it stands."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def triggered(self) -> float | None:
        """Of an EndpointSlice: when what led to its last change happened, in seconds since the epoch."""
        try:
            return datetime.fromisoformat((self.annotations or {}).get(_TRIGGER_TIME, "")).timestamp()
        except ValueError:
            return None

    @property
    def ends_initial_events(self) -> bool:
        return bool(self.annotations and self.annotations.get("k8s.io/initial-events-end") == "true")


class _Placed(Struct, frozen=True, gc=False):
    metadata: Place = Place()


class Status(Struct, frozen=True):
    """Why the server refuses something, in its own words."""

    code: int = 0
    reason: str = ""
    message: str = ""


_events = msgspec.json.Decoder(Event)
_pages = msgspec.json.Decoder(Page)
_placed = msgspec.json.Decoder(_Placed)
_statuses = msgspec.json.Decoder(Status)


class Decoder:
    """Of one kind of objects."""

    def __init__(self, kind: type[Watched]) -> None:
        self.kind = kind.__name__
        self._objects: msgspec.json.Decoder[Watched] = msgspec.json.Decoder(kind)

    def object(self, content: Raw) -> Watched:
        try:
            return self._objects.decode(content)
        except msgspec.ValidationError as error:
            raise Malformed(field_sentence(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Garbled(str(error)) from None


def event(line: bytes) -> Event:
    try:
        return _events.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None


def page(content: bytes) -> Page:
    try:
        return _pages.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None


def place(content: Raw) -> Place:
    """Of an object, however malformed the rest of it may be."""
    try:
        return _placed.decode(content).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Place()


def status(content: bytes | Raw) -> Status:
    try:
        return _statuses.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status()


async def line_batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """All lines that are there at once, together: their reader then has one turn for them, not one for each.

    A line without an end, where the connection was cut, is nobody's.
    """
    rest: list[bytes] = []  # of a line that goes on
    async for chunk in chunks:
        if b"\n" not in chunk:
            rest.append(chunk)
            continue
        *lines, last = chunk.split(b"\n")
        lines[0] = b"".join((*rest, lines[0]))
        rest = [last]
        yield [line for line in lines if line]
