"""What has changed since the last known good state was saved whole, a line for each change: a small one costs little.

Each line says from which state it leads to which, so that lines find their place behind any whole state. They are not
forced to the disk: they outlive the agent, however it ends. A machine without power loses its switch's flows as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from windlass import files
from windlass.cluster.catalogues import Touched
from windlass.cluster.objects import Cluster, EndpointSlice, Pod, Service

FILE = "last-known-good.changes"

T = TypeVar("T")


class Line(msgspec.Struct, omit_defaults=True):
    """The objects that are other than before, by their keys; None: it is gone."""

    before: str
    revision: str
    services: dict[str, Service | None] = {}
    slices: dict[str, EndpointSlice | None] = {}
    pods: dict[str, Pod | None] = {}


_decoder = msgspec.json.Decoder(Line)


def line(before: str, after: Cluster, touched: Touched) -> bytes:
    """`before` is the revision of the state from which it leads."""
    services, slices, pods = (
        _now(after.services, touched.services),
        _now(after.slices, touched.slices),
        _now(after.pods, touched.pods),
    )
    return msgspec.json.encode(Line(before, after.revision, services, slices, pods)) + b"\n"


def replayed(whole: Cluster, lines: Iterable[bytes]) -> Cluster:
    """The whole state after all changes that follow it. A line that was torn ends them."""
    services, slices, pods = dict(whole.services), dict(whole.slices), dict(whole.pods)
    revision = whole.revision
    for change in _read(lines):
        if change.before != revision:
            continue  # it is older than the whole
        revision = change.revision
        _apply(change.services, services)
        _apply(change.slices, slices)
        _apply(change.pods, pods)
    return replace(whole, revision=revision, services=services, slices=slices, pods=pods)


def lines_in(directory: Path) -> list[bytes]:
    try:
        return (directory / FILE).read_bytes().splitlines()
    except OSError:
        return []


class Journal:
    """The file, written to as changes come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1  # none, until there is a whole state before it

    def begin(self, lines: Iterable[bytes]) -> None:
        """With these lines alone: those that follow the whole state that was just saved."""
        self.close()
        files.write(self._directory / FILE, lines, durable=False)
        self._file = os.open(self._directory / FILE, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, change: bytes) -> None:
        if self._file >= 0 and os.write(self._file, change) < len(change):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _now(objects: Mapping[str, T], touched: AbstractSet[str]) -> dict[str, T | None]:
    return {key: objects.get(key) for key in touched}


def _read(lines: Iterable[bytes]) -> Iterator[Line]:
    for text in lines:
        try:
            yield _decoder.decode(text)
        except msgspec.MsgspecError:
            return


def _apply(changes: Mapping[str, T | None], objects: dict[str, T]) -> None:
    for key, changed in changes.items():
        if changed is None:
            objects.pop(key, None)
        else:
            objects[key] = changed
