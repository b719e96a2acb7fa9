"""The last known good state on disk: an agent that starts without its source still programs its Node."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.cluster.objects import Cluster, Node

FILE = "last-known-good.json"


class _Saved(Struct):
    revision: str
    nodes: dict[str, Node]


def save(directory: Path, cluster: Cluster) -> None:
    """Whole or not at all: a crash in the middle leaves the former file."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f".{FILE}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(_Saved(cluster.revision, dict(cluster.nodes))))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / FILE)


def load(directory: Path) -> Cluster | None:
    """None where there is none, or where it cannot be read: it is a help, never a condition."""
    try:
        saved = msgspec.json.decode((directory / FILE).read_bytes(), type=_Saved)
    except (OSError, msgspec.MsgspecError):
        return None
    return Cluster(saved.revision, saved.nodes)
