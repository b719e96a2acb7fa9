"""Documents of a scenario as plain dictionaries: how they are written and identified."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.lab.scenarios.directives import API_VERSION
from windlass.lab.scenarios.objects import LabMetadata

WrittenDocument = dict[str, object]
Documents = dict[tuple[str, str], WrittenDocument]  # by kind and `namespace/name`, or the name alone

_CLUSTER_SCOPED = frozenset({"Node", "Namespace", "ClusterNetworkPolicy", "ExternalHost", "Probe", "Action", "Delete"})


def manifest(
    kind: str, metadata: Mapping[str, object], *, api_version: str = "v1", **fields: object
) -> WrittenDocument:
    """Leaves out what is empty in its metadata."""
    return {"apiVersion": api_version, "kind": kind, "metadata": nonempty(metadata), **fields}


def directive(kind: str, name: str, spec: WrittenDocument, why: str = "") -> WrittenDocument:
    """A document that only the lab knows. `why` is its annotation."""
    metadata = {"name": name, "annotations": {"why": why} if why else {}}
    return manifest(kind, metadata, api_version=API_VERSION, spec=spec)


def nonempty(fields: Mapping[str, object]) -> WrittenDocument:
    return {name: value for name, value in fields.items() if value}


def identity(document: WrittenDocument) -> tuple[str, str]:
    metadata = msgspec.convert(document["metadata"], LabMetadata)
    kind = str(document["kind"])
    return kind, metadata.name if kind in _CLUSTER_SCOPED else metadata.key
