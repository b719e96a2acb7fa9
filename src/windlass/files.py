"""Writes files whole: after a crash, and to every reader, a file has its old content or its new content, never a part.

Nothing here knows what the files hold.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class FileError(OSError):
    """A file could not be written or removed. Its text says which file and why; the caller adds what to do."""

    def __init__(self, path: Path, what: str, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))
        self._text = f"{path}: {what}: {self.strerror}"

    def __str__(self) -> str:
        return self._text


def write(
    path: Path,
    content: bytes | Iterable[bytes],
    *,
    mode: int = 0o644,
    durable: bool = True,
    writer: str = "",
    patience: float = 2.0,
) -> None:
    """Replace the file, or create it along with its directories. On FileError the old file is unchanged.

    durable: wait until the content and the name are on the disk. Not needed where losing power makes the file useless.
    writer: tells apart threads that may write the same file at the same time; the last one wins.
    patience: on Windows, the seconds to wait while the file is in use. In an event loop, give a small value.
    """
    temporary = path.with_name(f".{path.name}{writer and '.'}{writer}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # left by a crash
        with open(temporary, "xb", opener=_open_private) as file:
            file.writelines((content,) if isinstance(content, bytes) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.chmod(mode)
        _rename(temporary, path, patience)
        if durable:
            _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise FileError(path, "cannot be written", error) from error


def _rename(temporary: Path, path: Path, patience: float) -> None:
    """Windows refuses to replace a file while a thread reads or replaces it, which takes milliseconds."""
    deadline = time.monotonic() + (patience if sys.platform == "win32" else 0)
    while True:
        try:
            temporary.replace(path)
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
        else:
            return


def remove(path: Path) -> None:
    """Remove the file, if it exists, and wait until its name is gone from the disk."""
    try:
        path.unlink()
        _sync_directory(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(path, "cannot be removed", error) from error


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # until it has its final mode and name


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # Windows cannot open a directory; NTFS journals the rename itself
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
