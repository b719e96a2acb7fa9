"""The journal of the last known good state: one line for each change since the whole state was saved.

Each line names the revision before and after it, so that lines can be matched to any whole state. The file is not
fsynced: it survives a crash of the agent. A machine that loses power loses the flows of its switch as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Raw

from windlass import files
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster, Namespaces, objects_of, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import APIObject

FILE = "last-known-good.changes"
_LISTED = "listed_namespaces"  # missing in lines of earlier versions: then what is listed is not known
_PATIENCE = 0.05  # seconds: short, because the event loop waits. After a failure, the next change saves the whole state


def line(before: str, after: Cluster, changes: ChangeSet) -> bytes:
    """The change from the revision `before`: the changed objects of each kind by key, null for a deleted one."""
    listed = after.listed_namespaces
    content: dict[str, object] = {
        "before": before,
        "revision": after.revision,
        _LISTED: None if listed is None else sorted(listed),
    }
    changed = changes.by_kind()
    for member, kind in kinds_of(type(after)).items():
        if kind.struct in changed:
            objects = objects_of(after, member)
            content[member] = {key: objects.get(key) for key in changed[kind.struct]}
    return msgspec.json.encode(content) + b"\n"


def replayed(whole: Cluster, lines: Iterable[bytes]) -> Cluster:
    """The state after all changes that follow `whole`. Reading stops at an incomplete line."""
    revision, listed = whole.revision, whole.listed_namespaces
    members: dict[str, dict[str, APIObject]] = {}
    for change in _read(lines, type(whole)):
        if change.before != revision:
            continue  # older than the whole state
        revision, listed = change.revision, change.listed
        for member, objects in change.objects.items():
            if member not in members:
                members[member] = dict(objects_of(whole, member))
            _apply(objects, members[member])
    return replace(with_objects(whole, members, revision), listed_namespaces=listed)


def lines_in(directory: Path) -> list[bytes]:
    try:
        return (directory / FILE).read_bytes().splitlines()
    except OSError:
        return []


class Journal:
    """The file, to which lines are appended as changes come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1  # closed until a whole state has been saved

    def begin(self, lines: Iterable[bytes]) -> None:
        """Replace the file by these lines: those that follow the whole state that was just saved."""
        self.close()
        files.write(self._directory / FILE, lines, durable=False, patience=_PATIENCE)
        # Without O_BINARY, Windows would translate line ends. O_CLOEXEC is the default of Python.
        self._file = os.open(self._directory / FILE, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def add(self, change: bytes) -> None:
        if self._file >= 0 and os.write(self._file, change) < len(change):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class _Line(NamedTuple):
    before: str
    revision: str
    listed: Namespaces
    objects: Mapping[str, Mapping[str, APIObject | None]]


def _read(lines: Iterable[bytes], cluster: type[Cluster]) -> Iterator[_Line]:
    for text in lines:
        try:
            yield _decoded(text, cluster)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
            return


def _decoded(text: bytes, cluster: type[Cluster]) -> _Line:
    decode = msgspec.json.decode
    content = decode(text, type=dict[str, Raw])
    objects: dict[str, dict[str, APIObject | None]] = {}
    for member, kind in kinds_of(cluster).items():
        if member in content:
            changed = decode(content[member], type=dict[str, Raw])
            objects[member] = {key: decode(one, type=kind.struct | None) for key, one in changed.items()}
    before, revision = (decode(content[name], type=str) for name in ("before", "revision"))
    listed = decode(content.get(_LISTED, b"[]"), type=frozenset[str] | None)
    return _Line(before, revision, listed, objects)


def _apply(changes: Mapping[str, APIObject | None], objects: dict[str, APIObject]) -> None:
    for key, changed in changes.items():
        if changed is None:
            objects.pop(key, None)
        else:
            objects[key] = changed
