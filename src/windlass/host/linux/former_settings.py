"""The former values of settings that Windlass changes: recorded before the first change, restored on release.

A record is valid for one boot: a reboot restores the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from windlass import files
from windlass.host.linux import records


class _Former(msgspec.Struct, frozen=True):
    was: str
    became: str  # the last value that Windlass set


class _Stored(msgspec.Struct):
    boot: str
    sysctls: dict[str, _Former] = {}  # by name below `net`, in the order of the first changes
    offloads: dict[str, list[int]] = {}  # by interface


class FormerSettings:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()

    def remember_sysctl(self, name: str, was: str, becomes: str) -> None:
        """Call before each change. Of several changes, the first former value is kept."""

        def add(stored: _Stored) -> None:
            known = stored.sysctls.get(name)
            stored.sysctls[name] = _Former(known.was if known else was, becomes)

        self._change(add)

    def remember_offloads(self, interface: str, were: list[int]) -> None:
        def add(stored: _Stored) -> None:
            stored.offloads.setdefault(interface, were)

        self._change(add)

    @property
    def sysctls(self) -> list[tuple[str, str, str]]:
        """Name, former value and current value; the last change first."""
        stored = self._load()
        return [(name, former.was, former.became) for name, former in reversed(stored.sysctls.items())]

    @property
    def offloads(self) -> dict[str, list[int]]:
        return self._load().offloads

    def forget(self) -> None:
        files.remove(self._file)

    def _change(self, change: Callable[[_Stored], None]) -> None:
        with self._lock:
            stored = self._load()
            before = msgspec.json.encode(stored)
            change(stored)
            after = msgspec.json.encode(stored)
            # If the disk is full, go on: the network matters more than the former settings.
            with suppress(OSError):
                if after != before:
                    files.write(self._file, msgspec.json.format(after) + b"\n")

    def _load(self) -> _Stored:
        boot = records.boot()
        with suppress(OSError, msgspec.DecodeError):
            stored = msgspec.json.decode(self._file.read_bytes(), type=_Stored)
            if stored.boot == boot:
                return stored
        return _Stored(boot)
