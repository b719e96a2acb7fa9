"""The last known good state on disk. An agent that starts while its source is unavailable programs its Node with it.

The whole state is saved from time to time. Each change after that is a line in a journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import NoReturn

import msgspec

from windlass import files
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.journals import Journal, line, lines_in, replayed

FILE = "last-known-good.json"
LEAST_PAUSE = 0.5  # seconds between two saves of the whole state
LONGEST_JOURNAL = 1 << 20  # bytes, or a quarter of the whole state if that is more: beyond, the whole state is saved
_BATCH = 8  # objects to encode before other threads can run: about 30 microseconds
_PAUSE = 0.002  # seconds between batches: a change takes the interpreter lock ten times or more, and must rarely wait


def save(directory: Path, cluster: Cluster, pause: float = 0.0) -> None:
    """Save the whole state. In a thread, give `pause`: the seconds that other threads get after each batch."""
    files.write(directory / FILE, _with_pauses(_batches(cluster), pause))


def load(directory: Path, cluster: type[Cluster] = Cluster) -> Cluster | None:
    """None if the file does not exist or cannot be read: the agent can start without it."""
    try:
        content = (directory / FILE).read_bytes()
        saved = msgspec.json.decode(content, type=cluster)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if b'"listed_namespaces":' not in content:  # of an earlier version: what is listed is not known
        saved = replace(saved, listed_namespaces=frozenset())
    return replayed(saved, lines_in(directory)) if saved.revision else None  # without a revision it is some other file


class Saver:
    """Saves each change at once, and from time to time the whole state, in a thread."""

    def __init__(self, directory: Path, report: Callable[[Iterable[str]], object]) -> None:
        """`report` is called with the reason why the state cannot be saved, or with none."""
        self._directory = directory
        self._report = report
        self._journal = Journal(directory)
        self._kept: Cluster | None = None  # the last state
        self._revision = ""  # the last revision that is or will be saved; empty: save the next state whole
        self._whole: Cluster | None = None  # still to be saved
        self._following: list[bytes] | None = None  # lines that follow the whole state while it is being saved
        self._length = 0  # the length of the journal, in bytes
        self._longest = LONGEST_JOURNAL
        self._fresh = asyncio.Event()

    def keep(self, cluster: Cluster, changes: ChangeSet = EVERYTHING) -> None:
        """Does nothing for the state of the last call. `changes`: since then."""
        if cluster is self._kept:
            return
        self._kept = cluster
        can_append = self._revision and not changes.is_everything
        if not can_append or not self._append(line(self._revision, cluster, changes)):
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
            if (whole := self._take()) is not None:
                self._saved_whole(_saved(self._directory, whole))
            self._journal.close()

    def _append(self, change: bytes) -> bool:
        """Append to the journal. False if it has become too long or cannot be written."""
        if self._following is not None:
            self._following.append(change)
        self._length += len(change)
        try:
            self._journal.add(change)
        except OSError as error:
            self._report_problem(_trouble(self._directory, error))
            return False
        return self._length <= self._longest

    async def _save_in_thread(self) -> None:
        if (whole := self._take()) is None:
            return
        saving = asyncio.ensure_future(asyncio.to_thread(_saved, self._directory, whole, _PAUSE))
        try:
            self._saved_whole(await asyncio.shield(saving))
        except asyncio.CancelledError:
            self._saved_whole(await saving)  # two saves must not run at the same time
            raise

    def _saved_whole(self, problem: str) -> None:
        """Start the journal of the saved state, unless a newer state waits to be saved: the lines belong to that."""
        if not problem and self._whole is None:
            try:
                self._journal.begin(self._following or ())
                self._following = None
                self._longest = max(LONGEST_JOURNAL, (self._directory / FILE).stat().st_size // 4)
            except OSError as error:
                problem = _trouble(self._directory, error)
        if problem:
            self._revision = ""
        self._report_problem(problem)

    def _take(self) -> Cluster | None:
        self._fresh.clear()
        whole, self._whole = self._whole, None
        return whole

    def _report_problem(self, problem: str) -> None:
        self._report([problem] if problem else [])


def _saved(directory: Path, cluster: Cluster, pause: float = 0.0) -> str:
    """The problem, or an empty string if the state is saved."""
    try:
        save(directory, cluster, pause)
    except OSError as error:
        return _trouble(directory, error)
    return ""


def _trouble(directory: Path, error: OSError) -> str:
    reason = f"the state of the cluster cannot be saved: {error.strerror}"
    return f"{directory}: {reason}; the agent retries with the next change"


def _with_pauses(batches: Iterator[bytes], pause: float) -> Iterator[bytes]:
    for batch in batches:
        yield batch
        if pause:
            time.sleep(pause)


def _batches(cluster: Cluster) -> Iterator[bytes]:
    """The JSON in pieces: encoding it at once would block all other threads."""
    separator = b"{"
    for field in fields(cluster):
        value = getattr(cluster, field.name)
        if field.name == "problems":  # they may be corrected when the state is loaded
            continue
        yield separator + msgspec.json.encode(field.name) + b":"
        separator = b","
        if isinstance(value, Mapping):
            yield from _members(value)
        else:
            yield msgspec.json.encode(value, order="deterministic")
    yield b"}"


def _members(objects: Mapping[str, object]) -> Iterator[bytes]:
    left = iter(objects.items())
    separator = b"{"
    while batch := list(islice(left, _BATCH)):
        yield separator + msgspec.json.encode(dict(batch))[1:-1]
        separator = b","
    yield b"{}" if separator == b"{" else b"}"
