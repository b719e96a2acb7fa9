"""The Services that this Node serves, with their group numbers. Pure, except for the file of the group numbers.

`cluster.catalogues` decides how a Service is served.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from windlass.cluster.catalogues import Catalogue
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import Problem
from windlass.model.mappings import PersistentMap
from windlass.model.services import ServedPort, ServedService
from windlass.nodes.group_numbers import GroupNumbers

_SLICE = 100  # Services to number before other tasks run


class NodeServices:
    """The Services of one Node, from one state of the cluster to the next."""

    def __init__(self, numbers: GroupNumbers) -> None:
        self.services: PersistentMap[ServedService] = PersistentMap()  # by namespace/name
        self._catalogue = Catalogue()
        self._numbers = numbers

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The same object as long as no problem is added, removed or changed."""
        return self._catalogue.problems

    def following(
        self, cluster: Cluster, node: ServingNode, changes: ChangeSet = EVERYTHING
    ) -> Generator[None, None, dict[str, ServedService | None]]:
        """Bring `services` up to this state of the cluster, in slices. The generator must be run to its end.

        Returns the Services that changed, as they were before; None: the Service is new.
        """
        changed = yield from self._catalogue.following(cluster, node, changes)
        now: dict[str, ServedService | None] = {}
        for key in sorted(changed):
            service = self._catalogue.services.get(key)
            now[key] = self._numbered(service) if service else None
            if not len(now) % _SLICE:
                yield
        before = {key: self.services.get(key) for key in now}
        if now:
            self.services = self.services.updated(now)
        self._numbers.keep()
        if self._numbers.may_have_stale_names:
            self._numbers.forget_all_but({_number_name(s, port) for s in self.services.values() for port in s.ports})
        return before

    def _numbered(self, service: ServedService) -> ServedService:
        ports = tuple(
            msgspec.structs.replace(port, group=self._numbers.of(_number_name(service, port))) for port in service.ports
        )
        return msgspec.structs.replace(service, ports=ports)


def _number_name(service: ServedService, port: ServedPort) -> str:
    return f"{service.key} {port.name} {port.protocol} {port.family}"
