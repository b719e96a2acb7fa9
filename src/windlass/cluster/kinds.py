"""The declaration of a kind of Kubernetes objects that the agent watches.

A kind is one field of `clusters.Cluster`, made by `by_key`. The API requests, the RBAC rules, the decoding, the
manifests that are read, the last known good state, its journal and the changes that sources report follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from windlass.cluster.objects import APIObject, kind_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound=APIObject)
_KIND = "kind"  # the key in the metadata of a dataclass field


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[T]):
    struct: type[T]  # also identifies the kind in a ChangeSet
    api_version: str
    resource: str  # the plural, as in paths and roles
    label_selector: str = ""
    field_selector: str = ""  # {node} stands for the name of this Node
    is_optional: bool = False  # some API servers do not know this kind
    is_required: bool = True  # there is no Cluster before these are listed, and its revision covers them
    is_on_demand: bool = False  # only in namespaces that the agent needs, and not from manifests; see `scoped_feeds`
    # Makes the substitute of an object that cannot be decoded, if it must not be left out, from the parsed document.
    closed: Callable[[Mapping[str, object]], T | None] | None = None
    # If the server forbids reading these, those of the last known good state stay in use, and other kinds are followed.
    # They also stay for some seconds if the server does not know their kind.
    is_remembered: bool = False
    watch_name: str = ""  # the name in the metrics; by default the resource

    @property
    def name(self) -> str:
        return kind_name(self.struct)

    def instead_of(self, document: object, earlier: APIObject | None) -> tuple[APIObject | None, str]:
        """What is used instead of a document that cannot be decoded, and the end of the sentence that reports it."""
        denying = self.closed(document) if self.closed and isinstance(document, dict) else None
        if denying is not None:
            kept = earlier if earlier == denying else denying  # readers compare by identity
            return kept, "it denies everything to the Pods that it selects"
        if earlier is not None:
            return earlier, "its earlier version stays in use"
        return None, "it is left out, the rest is used"

    @property
    def is_metadata_only(self) -> bool:
        return self.struct.__struct_fields__ == ("metadata",)

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def path(self) -> str:
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.resource}"

    def path_in(self, namespace: str) -> str:
        """The path to create objects at: in the namespace, if this kind is namespaced."""
        middle = f"namespaces/{namespace}/" if self.struct.is_namespaced else ""
        return f"{self.path.removesuffix(self.resource)}{middle}{self.resource}"

    def selectors(self, node: str) -> dict[str, str]:
        """The parameters with which this Node lists and watches."""
        given = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector.format(node=node)}
        return {name: selector for name, selector in given.items() if selector}


def by_key(kind: WatchedKind[T]) -> Mapping[str, T]:
    """A field of a dataclass that holds the objects of this kind."""
    return field(default_factory=dict, metadata={_KIND: kind})


def kinds_of(cluster: type[DataclassInstance]) -> Mapping[str, WatchedKind[APIObject]]:
    """The kinds that a class declares, by the name of the field."""
    return _declared(cluster)


@cache
def _declared(cluster: type[DataclassInstance]) -> Mapping[str, WatchedKind[APIObject]]:
    return {one.name: one.metadata[_KIND] for one in fields(cluster) if _KIND in one.metadata}
