"""The cluster from a directory or file of Kubernetes manifests, watched for changes.

A malformed file or object is reported as a problem, and its earlier version stays in use.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import watchfiles
import yaml

from windlass.cluster.changes import EVERYTHING
from windlass.cluster.clusters import Cluster, decode, kind_of, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import APIObject, Malformed, Problem
from windlass.cluster.sources import AllPodsKnown, ClusterChange, SourceAway, changes_between

_LEFT_OUT = "it is left out, the rest is used"
SUFFIXES = (".yaml", ".yml", ".json")

Name = tuple[str, str]  # kind and key: ("Service", "default/web")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    digest: str
    objects: tuple[tuple[Name, APIObject], ...]
    problems: tuple[Problem, ...]


class ManifestsMissing(SourceAway):
    """The folder does not exist."""


def revision_of(path: Path) -> str:
    """Identifies the present content of the folder."""
    return _revision({name: _digest(content) for name, content in _contents(path)})


class Manifests(AllPodsKnown):
    """A ClusterSource that reads a folder; each `read` decodes only the files that changed."""

    def __init__(self, path: Path, cluster: type[Cluster] = Cluster) -> None:
        """The Cluster class declares the kinds that are read."""
        self.path = path
        self._cluster = cluster
        self._files: dict[str, ManifestFile] = {}

    def read(self) -> Cluster:
        files: dict[str, ManifestFile] = {}
        digests: dict[str, str] = {}
        for name, content in _contents(self.path):
            digests[name] = digest = _digest(content)
            before = self._files.get(name)
            files[name] = before if before and before.digest == digest else self._parse(name, content, digest, before)
        self._files = files
        return self._assemble(_revision(digests), files)

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        """The cluster now, and again after each change of the folder."""
        watcher = watchfiles.awatch(
            self.path if self.path.is_dir() else self.path.parent, step=20, debounce=100, rust_timeout=500
        )
        changed = asyncio.ensure_future(anext(watcher))
        try:
            await asyncio.sleep(0)  # lets the watch start first, so that no change is missed
            before: Cluster | None = None
            while True:
                cluster = await asyncio.to_thread(self.read)  # in a thread: ten thousand Services in YAML take seconds
                yield ClusterChange(cluster, changes_between(before, cluster) if before else EVERYTHING)
                before = cluster
                await changed
                changed = asyncio.ensure_future(anext(watcher))
        finally:
            changed.cancel()
            await asyncio.gather(changed, return_exceptions=True)

    def _parse(self, name: str, content: bytes, digest: str, before: ManifestFile | None) -> ManifestFile:
        try:
            documents = [unpacked for document in _documents(name, content) for unpacked in _unpacked(document)]
        except (yaml.YAMLError, ValueError) as error:  # PyYAML raises ValueError for a date such as 2024-13-01
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark else ""
            what = getattr(error, "problem", None) or str(error).partition("\n")[0]
            kept = before.objects if before else ()
            sentence = f"not valid YAML{line}: {what}; " + (
                f"the {len(kept)} objects that it held before stay in use" if before else "none of it is used"
            )
            return ManifestFile(digest, kept, (Problem(name, sentence),))
        return self._decode_all(name, documents, digest, before)

    def _decode_all(self, name: str, documents: list[object], digest: str, before: ManifestFile | None) -> ManifestFile:
        known = dict(before.objects) if before else {}
        objects: list[tuple[Name, APIObject]] = []
        problems: list[Problem] = []
        for number, document in enumerate(documents, start=1):
            try:
                decoded = decode(document, self._cluster)
            except Malformed as error:
                named = self._name(document)
                kind = kind_of(document, self._cluster) if isinstance(document, dict) else None
                kept, now = kind.instead_of(document, known.get(named)) if kind and named else (None, _LEFT_OUT)
                if named and kept:
                    objects.append((named, kept))
                label = " ".join(named) if named else f"document {number}"
                problems.append(Problem(f"{name}: {label}", f"{error}; {now}"))
            else:
                if decoded is not None:
                    named = type(decoded).__name__, decoded.key
                    same = known.get(named)  # an unchanged object stays the same object: readers compare by identity
                    objects.append((named, same if same == decoded else decoded))
        return ManifestFile(digest, tuple(objects), tuple(problems))

    def _name(self, document: object) -> Name | None:
        """The name of a document that cannot be decoded."""
        if isinstance(document, dict) and isinstance(metadata := document.get("metadata"), dict) and "name" in metadata:
            kind, name = str(document.get("kind", "object")), str(metadata["name"])
            namespaced = {one.name for one in kinds_of(self._cluster).values() if one.struct.is_namespaced}
            return kind, f"{metadata.get('namespace') or 'default'}/{name}" if kind in namespaced else name
        return None

    def _assemble(self, revision: str, files: dict[str, ManifestFile]) -> Cluster:
        found: dict[Name, APIObject] = {}
        problems: list[Problem] = []
        for file_name, file in files.items():
            problems += file.problems
            for name, one in file.objects:
                if name in found:
                    where = f"{file_name}: {' '.join(name)}"
                    problems.append(Problem(where, "is defined twice; the first one is used"))
                else:
                    found[name] = one
        members: dict[type[APIObject], dict[str, APIObject]] = {}
        for (_, key), one in found.items():
            members.setdefault(type(one), {})[key] = one
        objects = {member: members.get(kind.struct, {}) for member, kind in kinds_of(self._cluster).items()}
        return with_objects(self._cluster(revision, tuple(problems)), objects)


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if not path.exists():
        raise ManifestsMissing(f"{path}: no such file or directory; check `manifests` in the configuration")
    candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in candidates:
        name = file.relative_to(path) if path.is_dir() else Path(file.name)
        # Hidden names are temporary files, and the folders in which the kubelet keeps versions of a mounted ConfigMap.
        if file.suffix in SUFFIXES and not any(part.startswith(".") for part in name.parts) and file.is_file():
            with suppress(FileNotFoundError):  # it was deleted after it was listed
                yield str(name), file.read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _revision(digests: dict[str, str]) -> str:
    return _digest("\n".join(f"{name} {digest}" for name, digest in sorted(digests.items())).encode())


def _documents(name: str, content: bytes) -> list[object]:
    if name.endswith(".json"):
        with suppress(msgspec.DecodeError):  # JSON is YAML, too, but this decoder is fifty times as fast
            return [msgspec.json.decode(content)]
    return list(yaml.load_all(content, yaml.CSafeLoader))


def _unpacked(document: object) -> Iterator[object]:
    """The items of a `kind: List`; none for an empty document."""
    if document is None:
        return
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and "items" in document:
        items = document["items"] or ()
        yield from items if isinstance(items, list | tuple) else [items]
    else:
        yield document
