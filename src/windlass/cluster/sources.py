"""Where the state of the cluster comes from: what every source provides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol

from windlass.cluster.changes import EVERYTHING, ChangeSet, differences
from windlass.cluster.clusters import Cluster, Namespaces, objects_of
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import Pod


class ClusterChange(NamedTuple):
    cluster: Cluster  # the whole state now; an unchanged object is the same object as before
    changes: ChangeSet = EVERYTHING  # all other objects are unchanged
    # When the causes of changed EndpointSlices occurred, in seconds since the epoch, if the slices say so.
    triggered: tuple[float, ...] = ()


class WatchHealth(NamedTuple):
    """How well one kind of objects is followed, for the metrics."""

    resource: str  # or another name, where a resource is followed in two ways
    age: float | None  # seconds since the server last sent anything; None: the server does not know the resource
    restarts: Mapping[str, int]  # by reason


class SourceAway(Exception):
    """The state of the cluster cannot be read. The message says what is missing and which setting to check."""


class ClusterSource(Protocol):
    @property
    def watches(self) -> Sequence[WatchHealth]:
        """Empty if the source needs no connections."""

    def changes(self) -> AsyncGenerator[ClusterChange, None]:
        """The present cluster as a change of everything, then each change. SourceAway if it cannot be read."""

    @property
    def is_complete(self) -> bool:
        """Whether each state has all objects. Else a namespace may come later than its Pods, and a new Pod later than
        the container runtime adds it.
        """

    @property
    def has_found_pods(self) -> bool:
        """Whether all Pods that `find_pods` was last called for have been listed."""

    async def find_pods(self, namespaces: Namespaces) -> None:
        """Include the Pods of other Nodes in these namespaces in `peer_pods`. Returns when they have been listed.

        Until then, `listed_namespaces` of the cluster has only those that have been listed.
        """

    async def find_pod(self, key: str) -> Pod | None:
        """A Pod of this Node that `changes` has not reported yet; None if there is none, or it cannot be read."""


class AllPodsKnown:
    """A source that needs no connections, and has the Pods of all Nodes in `pods`: nothing is left to find."""

    watches: Sequence[WatchHealth] = ()
    is_complete: bool = True
    has_found_pods: bool = True

    async def find_pods(self, namespaces: Namespaces) -> None: ...

    async def find_pod(self, key: str) -> Pod | None: ...


def changes_between(before: Cluster, after: Cluster) -> ChangeSet:
    """The changes of a source that keeps unchanged objects."""
    return ChangeSet.of(
        {
            kind.struct: differences(objects_of(before, member), objects_of(after, member))
            for member, kind in kinds_of(type(after)).items()
        }
    )
