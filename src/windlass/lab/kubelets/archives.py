"""Writes container images as archives for `ctr images import`, without a registry."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    names: tuple[str, ...]  # the references that Pods use
    layers: tuple[Path, ...]  # tar files, the lowest first; a Node stores shared layers once
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )


def layer(root: Path, target: Path) -> Path:
    """Writes a folder as a layer, at the root of the image; owned by root, without times."""
    fresh = target.with_name(f".{target.name}.new")
    with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as archive:
        for entry in sorted(root.iterdir()):
            archive.add(entry, arcname=entry.name, filter=_plain)
    fresh.replace(target)
    return target


def write(image: Image, target: Path) -> None:
    """Writes the archive in the format of `docker save`."""
    digests = [_digest(one) for one in image.layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Entrypoint": image.entrypoint or None,
            "Cmd": image.command or None,
            "User": image.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "windlass lab"} for _ in digests],
    }
    encoded = msgspec.json.encode(config)
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    files = [f"{digest}/layer.tar" for digest in digests]
    manifest = [{"Config": name, "RepoTags": image.names, "Layers": files}]
    fresh = target.with_name(f".{target.name}.new")
    with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, name, encoded)
        for file, path in zip(files, image.layers, strict=True):
            archive.add(path, arcname=file, filter=_plain)
        _add(archive, "manifest.json", msgspec.json.encode(manifest))
    fresh.replace(target)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
