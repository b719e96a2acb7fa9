"""The Kubernetes objects a Node needs, typed, with only the fields that somebody uses; and how to decode them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import Struct


class Metadata(Struct, frozen=True, omit_defaults=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None  # null and absent are the same in Kubernetes


class NodeSpec(Struct, frozen=True, omit_defaults=True, rename="camel"):
    # `podCIDR` repeats the first of these; an object that carries only the old field is understood as well.
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")


class NodeAddress(Struct, frozen=True):
    type: str
    address: str


class NodeStatus(Struct, frozen=True, omit_defaults=True):
    addresses: tuple[NodeAddress, ...] = ()


class Node(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="Node"):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        return self.spec.pod_cidrs or ((self.spec.pod_cidr,) if self.spec.pod_cidr else ())


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of the input that cannot be used: what, where and what now. The rest is used all the same."""

    where: str  # a file, or an object
    sentence: str

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """All objects that a source holds at one moment."""

    revision: str = ""  # names this state; equal revisions are equal states
    nodes: Mapping[str, Node] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class Source(Protocol):
    """Where a Cluster comes from, and how one learns that it changed."""

    def __aiter__(self) -> Source: ...
    async def __anext__(self) -> Cluster: ...


KINDS: Mapping[tuple[str, str], type[Node]] = {("v1", "Node"): Node}


class Malformed(ValueError):
    """An object that does not have the shape its kind asks for."""


def decode(document: object) -> Node | None:
    """The typed object of a parsed document; None for a kind that no part of Windlass reads."""
    if not isinstance(document, dict):
        raise Malformed(f"expected a Kubernetes object, got {type(document).__name__}")
    kind = KINDS.get((str(document.get("apiVersion", "")), str(document.get("kind", ""))))
    if kind is None:
        if not document.get("apiVersion") or not document.get("kind"):
            raise Malformed("an object needs `apiVersion` and `kind`")
        return None
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Malformed(field_sentence(str(error))) from None


def field_sentence(error: str) -> str:
    """msgspec says "Expected `str`, got `int` - at `$.spec.podCIDRs[0]`"; people start with the field."""
    what, _, where = error.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    return f"{path}: {what[:1].lower()}{what[1:]}" if path else what[:1].lower() + what[1:]
