"""The objects in manifests that policies depend on, by kind and key, and what is left out or ignored of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from windlass.cluster.clusters import KINDS
from windlass.cluster.objects import field_sentence
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.lab.scenarios.directives import DIRECTIVE_KINDS, is_of_the_lab
from windlass.lab.scenarios.expansions import Document
from windlass.lab.scenarios.redefinitions import redefinitions
from windlass.lab.scenarios.scenario_files import ScenarioError, title
from windlass.lab.scenarios.unknown_fields import suggestion, unknown_fields

_CLUSTER_SCOPED = frozenset({"Node", "Namespace", "ClusterNetworkPolicy"})
# Other groups have kinds of the same names, for example the policies of Calico and Antrea.
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("Pod", "Node", "Namespace", "ReplicationController"), ""),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps"),
    **dict.fromkeys(("Job", "CronJob"), "batch"),
    "NetworkPolicy": "networking.k8s.io",
    "ClusterNetworkPolicy": "policy.networking.k8s.io",
}
_VERSIONS = {kind.name: kind.api_version for kind in KINDS if kind.struct in {NetworkPolicy, ClusterNetworkPolicy}}
_LABELS = frozenset({"labels", "matchLabels"})
T = TypeVar("T")


class SourcedDocument(NamedTuple):
    source: str  # a file, or what else it was read from
    document: Document


@dataclass(frozen=True, slots=True)
class ManifestObject:
    kind: str
    key: str
    source: str
    document: Document  # without fields that are null
    written: Document

    def decoded(self, shape: type[T], document: Document | None = None) -> T:
        """As `shape`; `document` is the part of it that has the shape, if it is not the whole."""
        try:
            return msgspec.convert(self.document if document is None else document, shape)
        except msgspec.ValidationError as error:
            raise self.error(field_sentence(str(error))) from None

    def error(self, sentence: str) -> ScenarioError:
        return ScenarioError(f"{self.source}: {self.kind} {self.key}, {sentence}")


class ManifestObjects:
    """The objects after all documents were applied in order."""

    def __init__(self, documents: Iterable[SourcedDocument]) -> None:
        """Raises ScenarioError."""
        self._objects: dict[tuple[str, str], ManifestObject] = {}
        self._not_enforced: set[tuple[str, str, str]] = set()  # kind, apiVersion and key
        self._defined: list[tuple[str, Document]] = []  # every definition, with kind and key
        self._is_scenario = False
        self._unknown_kinds: list[str] = []
        for source, document in documents:
            try:
                self._apply(source, _without_nulls(document), document)
            except RecursionError:
                raise ScenarioError(f"{source}: is nested too deeply") from None

    def of(self, *kinds: str) -> Iterator[ManifestObject]:
        """In the order of the kinds."""
        return (one for kind in kinds for one in self._objects.values() if one.kind == kind)

    def decoded(self, kind: str, shape: type[T]) -> Iterator[T]:
        return (one.decoded(shape) for one in self.of(kind))

    @property
    def mistakes(self) -> Iterator[str]:
        """A sentence for each thing that its author may have meant otherwise."""
        yield from self._unknown_kinds
        for one in self.of(*_VERSIONS):
            where = f"{one.source}: {one.kind} {one.key}"
            version, read = one.document.get("apiVersion"), _VERSIONS[one.kind]
            if version != read:
                yield f"{where} has {f'the apiVersion {version}' if version else 'no apiVersion'}; it is read as {read}"
            yield from (f"{where}, {field}" for field in unknown_fields(one.written))
        if not self._is_scenario:  # its steps change objects
            yield from redefinitions(self._defined)

    @property
    def not_enforced(self) -> Iterator[str]:
        """A sentence for each kind of policies that Windlass does not enforce."""
        counted = Counter((kind, version) for kind, version, _ in self._not_enforced)
        for (kind, version), count in sorted(counted.items()):
            what = f"{kind} ({version})" if version else kind
            many = f"1 {what} is" if count == 1 else f"{count} objects of kind {what} are"
            yield f"{many} left out: Windlass does not enforce this kind"

    def _apply(self, source: str, document: Document, written: Document) -> None:
        kind, version = str(document.get("kind")), str(document.get("apiVersion", ""))
        is_directive = is_of_the_lab(document) and (kind in DIRECTIVE_KINDS or bool(version))
        self._is_scenario |= is_directive
        if is_directive and kind == "Delete":
            spec = document.get("spec")
            gone = spec if isinstance(spec, dict) else {}
            self._objects.pop((str(gone.get("kind")), str(gone.get("name"))), None)
        elif kind in _GROUPS and (not version or version.rpartition("/")[0] == _GROUPS[kind]):
            one = self._named(kind, source, document, written)
            self._objects[kind, one.key] = one
            self._defined.append((f"{kind} {one.key}", one.document))
        elif similar := _similar_kind(kind, version):
            self._unknown_kinds.append(f"{source}: {title(document)} is ignored: there is no such kind{similar}")
        elif kind.endswith("NetworkPolicy"):
            metadata = document.get("metadata")
            named = metadata if isinstance(metadata, dict) else {}
            self._not_enforced.add((kind, version, f"{named.get('namespace')}/{named.get('name')}"))

    def _named(self, kind: str, source: str, document: Document, written: Document) -> ManifestObject:
        """With the name of an object that the API server would name."""
        metadata = document.get("metadata")
        if not isinstance(metadata, dict):
            raise ScenarioError(f"{source}: a {kind} without metadata; every object needs a metadata.name")
        name = metadata.get("name") or metadata.get("generateName")
        if not name:
            raise ScenarioError(f"{source}: a {kind} without a name; every object needs a metadata.name")
        namespace = "" if kind in _CLUSTER_SCOPED else f"{metadata.get('namespace') or 'default'}/"
        if "name" not in metadata:
            name = self._free(kind, namespace, str(name))
            document = {**document, "metadata": {**metadata, "name": name}}
        return ManifestObject(kind, f"{namespace}{name}", source, document, written)

    def _free(self, kind: str, namespace: str, prefix: str) -> str:
        """Objects with the same generateName are different objects."""
        name, number = prefix, 1
        while (kind, f"{namespace}{name}") in self._objects:
            number += 1
            name = f"{prefix}{number}"
        return name


def _similar_kind(kind: str, version: str) -> str:
    """Of a misspelled kind. Other groups may have kinds with similar names."""
    is_of_policies = version.rpartition("/")[0] in {"", *(_GROUPS[name] for name in _VERSIONS)}
    return suggestion(kind, _VERSIONS, 0.85) if is_of_policies and kind not in _GROUPS else ""


def _without_nulls(document: Document) -> Document:
    """Kubernetes treats a field that is null as absent. A label that is null stays: without it a selector matches more.

    Annotations are left out: policies do not use them, and YAML reads some of their texts as dates or numbers.
    """
    return {
        field: value if field in _LABELS else _value_without_nulls(value)
        for field, value in document.items()
        if value is not None and field != "annotations"
    }


def _value_without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return _without_nulls(value)
    return [*map(_value_without_nulls, value)] if isinstance(value, list) else value
