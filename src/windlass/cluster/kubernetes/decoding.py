"""Decodes lists and watch events into typed objects; fields that Windlass does not use are dropped. Pure.

An object of the wrong shape is `Malformed`, and the others are used. Bytes that no API server sends are `Garbled`:
nothing after them can be trusted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from windlass.cluster.kinds import WatchedKind
from windlass.cluster.objects import APIObject, Malformed, Metadata, field_sentence

T = TypeVar("T")

_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"


class Garbled(Exception):
    """The bytes are not an answer of an API server."""


class EventType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # no further events up to this version
    ERROR = "ERROR"  # the object is a Status that says why the server ends the watch


class WatchEvent(Struct, frozen=True, gc=False):
    type: EventType
    object: Raw


class ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Struct, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Raw, ...] | None = None


class ObjectMeta(Struct, frozen=True, rename="camel", gc=False):
    """The metadata that is read of any object, malformed ones included."""

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
        """When the cause of the last change of an EndpointSlice occurred, in seconds since the epoch."""
        try:
            return datetime.fromisoformat((self.annotations or {}).get(_TRIGGER_TIME, "")).timestamp()
        except ValueError:
            return None


class _AnyObject(Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


class _PartialObject(Struct, frozen=True, gc=False):
    """A PartialObjectMetadata, whatever the kind of the object."""

    metadata: Metadata


class APIStatus(Struct, frozen=True):
    """Why the server refuses a request or ends a watch."""

    code: int = 0
    reason: str = ""
    message: str = ""


_events = msgspec.json.Decoder(WatchEvent)
_pages = msgspec.json.Decoder(Page)
_any_objects = msgspec.json.Decoder(_AnyObject)
_partial_objects = msgspec.json.Decoder(_PartialObject)
_statuses = msgspec.json.Decoder(APIStatus)


class Decoder:
    """For the objects of one kind."""

    def __init__(self, kind: WatchedKind[APIObject]) -> None:
        self._struct, self._is_metadata_only = kind.struct, kind.is_metadata_only
        self._objects = msgspec.json.Decoder(kind.struct)

    def object(self, content: Raw) -> APIObject:
        try:
            if self._is_metadata_only:
                return self._struct(_partial_objects.decode(content).metadata)
            return self._objects.decode(content)
        except msgspec.ValidationError as error:
            raise Malformed(field_sentence(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Garbled(str(error)) from None


def event(line: bytes) -> WatchEvent:
    return _decoded(_events, line)


def page(content: bytes) -> Page:
    return _decoded(_pages, content)


def object_meta(content: Raw) -> ObjectMeta:
    """The metadata of an object, even if the rest of the object is malformed."""
    try:
        return _decoded(_any_objects, content).metadata
    except Garbled:
        return ObjectMeta()


def status(content: bytes | Raw) -> APIStatus:
    try:
        return _decoded(_statuses, content)
    except Garbled:
        return APIStatus()


def _decoded(decoder: msgspec.json.Decoder[T], content: bytes | Raw) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None


async def line_batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """The complete lines of each chunk together, so that the caller handles them without an await in between.

    An incomplete last line, where the connection was cut, is dropped.
    """
    rest: list[bytes] = []  # the parts of an incomplete line
    async for chunk in chunks:
        if b"\n" not in chunk:
            rest.append(chunk)
            continue
        *lines, last = chunk.split(b"\n")
        lines[0] = b"".join((*rest, lines[0]))
        rest = [last]
        yield [line for line in lines if line]
