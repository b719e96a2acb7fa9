"""The last known good state on disk: an agent that starts without its source still programs its Node.

It is saved whole now and then, and each change after that is a line in a journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import NoReturn

import msgspec

from windlass import files
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.journals import Journal, line, lines_in, replayed

FILE = "last-known-good.json"
LEAST_PAUSE = 0.5  # seconds between two savings of the whole
LONGEST_JOURNAL = 1 << 20  # bytes, or a quarter of the whole if that is longer: then the whole is saved anew
_BATCH = 8  # objects to encode before other threads have a turn: some 30 microseconds
_BREATH = (
    0.002  # seconds, between batches: a change needs the interpreter ten times or more, and shall not wait each time
)


def save(directory: Path, cluster: Cluster, breath: float = 0.0) -> None:
    """Save the whole state. In a thread, give `breath`: seconds to leave to other threads after each batch."""
    files.write(directory / FILE, _with_pauses(_batches(cluster), breath))


def load(directory: Path, cluster: type[Cluster] = Cluster) -> Cluster | None:
    """None if there is none or it cannot be read: the agent can start without it."""
    try:
        saved = msgspec.json.decode((directory / FILE).read_bytes(), type=cluster)
    except (OSError, msgspec.MsgspecError):
        return None
    return replayed(saved, lines_in(directory)) if saved.revision else None  # else it is a file of something else


class Saver:
    """Keeps the newest state: changes at once, the whole off the event loop and not too often."""

    def __init__(self, directory: Path, report: Callable[[Iterable[str]], object]) -> None:
        """`report` is told what is in the way; nothing else fails for it."""
        self._directory = directory
        self._report = report
        self._journal = Journal(directory)
        self._revision = ""  # up to which all is kept, or about to be; none: the next is to be saved whole
        self._whole: Cluster | None = None  # to be saved
        self._following: list[bytes] | None = None  # the lines behind the newest whole, as long as that is being saved
        self._length = 0  # of the journal
        self._longest = LONGEST_JOURNAL
        self._fresh = asyncio.Event()

    def keep(self, cluster: Cluster, changes: ChangeSet = EVERYTHING) -> None:
        """`changes`: since the last state that was kept."""
        can_note = self._revision and not changes.is_everything
        if not can_note or not self._noted(line(self._revision, cluster, changes)):
            self._whole = cluster
            self._following, self._length = [], 0
            self._fresh.set()
        self._revision = cluster.revision

    async def run(self) -> NoReturn:
        try:
            while True:
                await self._fresh.wait()
                began = time.monotonic()
                await self._save_in_thread()
                await asyncio.sleep(max(LEAST_PAUSE, time.monotonic() - began))
        finally:
            if (whole := self._taken()) is not None:
                self._saved_whole(_saved(self._directory, whole))
            self._journal.close()

    def _noted(self, change: bytes) -> bool:
        """In the journal; not if that has become too long, or cannot be written to."""
        if self._following is not None:
            self._following.append(change)
        self._length += len(change)
        try:
            self._journal.add(change)
        except OSError as error:
            self._tell(_trouble(self._directory, error))
            return False
        return self._length <= self._longest

    async def _save_in_thread(self) -> None:
        if (whole := self._taken()) is None:
            return
        saving = asyncio.ensure_future(asyncio.to_thread(_saved, self._directory, whole, _BREATH))
        try:
            self._saved_whole(await asyncio.shield(saving))
        except asyncio.CancelledError:
            self._saved_whole(await saving)  # two at once would write over each other
            raise

    def _saved_whole(self, problem: str) -> None:
        """Its journal begins; but not if a newer whole is to be saved, to which the lines belong."""
        if not problem and self._whole is None:
            try:
                self._journal.begin(self._following or ())
                self._following = None
                self._longest = max(LONGEST_JOURNAL, (self._directory / FILE).stat().st_size // 4)
            except OSError as error:
                problem = _trouble(self._directory, error)
        if problem:
            self._revision = ""
        self._tell(problem)

    def _taken(self) -> Cluster | None:
        self._fresh.clear()
        whole, self._whole = self._whole, None
        return whole

    def _tell(self, problem: str) -> None:
        self._report([problem] if problem else [])


def _saved(directory: Path, cluster: Cluster, breath: float = 0.0) -> str:
    """What was in the way; nothing if it is saved."""
    try:
        save(directory, cluster, breath)
    except OSError as error:
        return _trouble(directory, error)
    return ""


def _trouble(directory: Path, error: OSError) -> str:
    return f"{directory}: the state of the cluster cannot be saved: {error.strerror}; the next one is tried again"


def _with_pauses(batches: Iterator[bytes], pause: float) -> Iterator[bytes]:
    for batch in batches:
        yield batch
        if pause:
            time.sleep(pause)


def _batches(cluster: Cluster) -> Iterator[bytes]:
    """As JSON; by and by, because one encoding of all would keep every other thread waiting."""
    separator = b"{"
    for field in fields(cluster):
        value = getattr(cluster, field.name)
        if field.name == "problems":  # they are about files that may be mended by then
            continue
        yield separator + msgspec.json.encode(field.name) + b":"
        separator = b","
        if isinstance(value, Mapping):
            yield from _members(value)
        else:
            yield msgspec.json.encode(value)
    yield b"}"


def _members(objects: Mapping[str, object]) -> Iterator[bytes]:
    left = iter(objects.items())
    separator = b"{"
    while batch := list(islice(left, _BATCH)):
        yield separator + msgspec.json.encode(dict(batch))[1:-1]
        separator = b","
    yield b"{}" if separator == b"{" else b"}"
