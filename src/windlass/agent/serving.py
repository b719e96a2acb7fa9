"""The Services of this Node from one state of the cluster to the next, and which of their UDP connections are outdated.

What a Service amounts to is decided in `cluster.catalogues`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

from windlass.cluster.catalogues import Catalogue, service_of
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange
from windlass.model.mappings import PersistentMap
from windlass.model.services import Protocol, ServedService
from windlass.nodes.group_numbers import GroupNumbers
from windlass.nodes.services import NodeServices
from windlass.pipeline.stale_connections import has_udp


class Serving:
    def __init__(self, directory: Path | None = None) -> None:
        """The directory keeps group numbers across restarts."""
        self.numbers = GroupNumbers(directory)
        self._served = NodeServices(self.numbers)
        self._is_first = True
        self._saved: Cluster | None = None
        # Services with UDP as they were before they changed; at first as an earlier agent had them, if that is known.
        self._outdated: dict[str, ServedService | None] = {}

    @property
    def services(self) -> PersistentMap[ServedService]:
        """By namespace/name."""
        return self._served.services

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The same object as long as no problem has come, gone or changed."""
        return self._served.problems

    def remember(self, saved: Cluster) -> None:
        """The last state that an earlier agent on this Node held: connections of changed Services are outdated."""
        self._saved = saved

    def following(self, change: ClusterChange, node: ServingNode) -> Generator[None, None, set[str]]:
        """Bring `services` up to this change, in slices. The generator must be run to its end.

        Returns the keys of the Services that changed.
        """
        saved, self._saved = self._saved, None
        knows_before = not self._is_first or saved is not None
        if self._is_first and saved is not None:
            self._outdated.update((yield from _with_udp(saved, node)))
        self._is_first = False
        before = yield from self._served.following(change.cluster, node, change.changes)
        for key, service in before.items() if knows_before else ():
            if has_udp(service) or has_udp(self.services.get(key)):
                self._outdated.setdefault(key, service)
        return set(before)

    def take_outdated(self, is_ready: Callable[[str], bool]) -> dict[str, ServedService | None]:
        """Services with UDP that have changed, as they were before; None: the Service is new.

        Those that are not ready stay, for the next time.
        """
        taken = {key: service for key, service in self._outdated.items() if is_ready(key)}
        for key in taken:
            del self._outdated[key]
        return taken


def _with_udp(cluster: Cluster, node: ServingNode) -> Generator[None, None, dict[str, ServedService]]:
    """The Services with UDP of this cluster, as this Node served them."""
    services = {
        key: service
        for key, service in cluster.services.items()
        if service.spec and any(port.protocol == Protocol.UDP.name for port in service.spec.ports or ())
    }
    slices = {key: one for key, one in cluster.slices.items() if service_of(one) in services}
    catalogue = Catalogue()
    yield from catalogue.following(Cluster(services=services, slices=slices), node)
    return catalogue.services
