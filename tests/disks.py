"""A small file system that a test fills up and empties again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE = "64k"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 64 kB lies over the folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Within the block this file system has no free byte; what it holds stays readable."""
    found = os.statvfs(folder)
    filling = folder / "full"
    filling.write_bytes(bytes(found.f_bavail * found.f_bsize))
    try:
        yield
    finally:
        filling.unlink()
