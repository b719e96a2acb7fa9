"""The last known good state on disk: an agent that starts without its source still programs its Node."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import NoReturn

import msgspec

from windlass.cluster.objects import Cluster

FILE = "last-known-good.json"
LEAST_PAUSE = 0.5  # seconds between two savings
_BATCH = 8  # objects to encode before other threads have a turn: some 30 microseconds
_BREATH = (
    0.002  # seconds, between batches: a change needs the interpreter ten times or more, and shall not wait each time
)


def save(directory: Path, cluster: Cluster, breath: float = 0.0) -> None:
    """Whole or not at all: a crash in the middle leaves the former file. Leaves the interpreter to others in between.

    For who calls it in a thread: its work then takes a fiftieth of the time, and as long as that takes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f".{FILE}.new"
    with fresh.open("wb") as file:
        for batch in _batches(cluster):
            file.write(batch)
            if breath:
                time.sleep(breath)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / FILE)


def load(directory: Path) -> Cluster | None:
    """None where there is none, or where it cannot be read: it is a help, never a condition."""
    try:
        saved = msgspec.json.decode((directory / FILE).read_bytes(), type=Cluster)
    except (OSError, msgspec.MsgspecError):
        return None
    return saved if saved.revision else None  # without one it is a file of something else


class Saver:
    """Saves the newest state, off the event loop and not too often; and at the end, what is not saved yet."""

    def __init__(self, directory: Path, report: Callable[[Iterable[str]], object]) -> None:
        """`report` is told what is in the way; nothing else fails for it."""
        self._directory = directory
        self._report = report
        self._newest: Cluster | None = None  # and not saved yet
        self._fresh = asyncio.Event()

    def keep(self, cluster: Cluster) -> None:
        self._newest = cluster
        self._fresh.set()

    async def run(self) -> NoReturn:
        try:
            while True:
                await self._fresh.wait()
                began = time.monotonic()
                await self._save_in_thread()
                await asyncio.sleep(max(LEAST_PAUSE, time.monotonic() - began))
        finally:
            if (newest := self._taken()) is not None:
                self._tell(_saved(self._directory, newest))

    async def _save_in_thread(self) -> None:
        if (newest := self._taken()) is None:
            return
        saving = asyncio.ensure_future(asyncio.to_thread(_saved, self._directory, newest, _BREATH))
        try:
            self._tell(await asyncio.shield(saving))
        except asyncio.CancelledError:
            await saving  # two at once would write over each other
            raise

    def _taken(self) -> Cluster | None:
        self._fresh.clear()
        newest, self._newest = self._newest, None
        return newest

    def _tell(self, problem: str) -> None:
        self._report([problem] if problem else [])


def _saved(directory: Path, cluster: Cluster, breath: float = 0.0) -> str:
    """What was in the way; nothing if it is saved."""
    try:
        save(directory, cluster, breath)
    except OSError as error:
        return f"{directory}: the state of the cluster cannot be saved: {error.strerror}; the next one is tried again"
    return ""


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
