"""The last known good state on disk: an agent that starts without its source still programs its Node."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec

from windlass.cluster.objects import Cluster

FILE = "last-known-good.json"


def save(directory: Path, cluster: Cluster) -> None:
    """Whole or not at all: a crash in the middle leaves the former file."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f".{FILE}.new"
    with fresh.open("wb") as file:
        # Problems are about files that may be mended by then.
        file.write(msgspec.json.encode(replace(cluster, problems=())))
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
