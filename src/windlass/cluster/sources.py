"""Where the state of the cluster comes from: what a source tells, and how several changes are taken as one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol

from windlass.cluster.catalogues import Touched, differences
from windlass.cluster.objects import Cluster


class Change(NamedTuple):
    cluster: Cluster  # as it is now, whole; what did not change is the same object as before
    touched: Touched | None = None  # nothing else may have changed; None: anything may
    # When what led to changes of EndpointSlices happened, in seconds since the epoch; of those that say so.
    triggered: tuple[float, ...] = ()


class Watch(NamedTuple):
    """How one kind of objects is followed, for the metrics."""

    resource: str
    age: float | None  # seconds since anything was heard; None: the source does not know the resource
    restarts: Mapping[str, int]  # by reason


class SourceAway(Exception):
    """There is nothing to read the cluster's state from. The message says what is missing, and what names it."""


class Source(Protocol):
    @property
    def watches(self) -> Sequence[Watch]:
        """None where the source needs no connections."""

    def changes(self) -> AsyncGenerator[Change, None]:
        """The cluster as it is, with `touched` None; and then after each change. SourceAway if it cannot be told."""


def between(before: Cluster, after: Cluster) -> Touched | None:
    """What may have changed, for a source that keeps the objects that did not."""
    if differences(before.nodes, after.nodes) or differences(before.service_cidrs, after.service_cidrs):
        return None
    return Touched(
        differences(before.services, after.services),
        differences(before.slices, after.slices),
        differences(before.pods, after.pods),
    )


def both(one: Touched | None, other: Touched | None) -> Touched | None:
    if one is None or other is None:
        return None
    return Touched(one.services | other.services, one.slices | other.slices, one.pods | other.pods)
