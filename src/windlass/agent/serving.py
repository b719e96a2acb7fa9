"""The Services of this Node from one state of the cluster to the next: as the Program has them, and as the host does.

What a Service comes to is decided in `cluster.catalogues`, what flows and host items come of it in `program` and in
`host.services`. Here it is kept what of all this has been worked out, so that a change costs what it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator
from pathlib import Path
from typing import NamedTuple, TypeVar

from windlass.cluster.catalogues import Catalogue, service_of
from windlass.cluster.changes import Ledger
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.kinds import Concern
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange, concerns
from windlass.host.plans import HostChange, HostNames, HostPlan, Item
from windlass.host.services import ItemClaims, plan_service, plan_services
from windlass.model.families import IPNetwork
from windlass.model.mappings import PersistentMap
from windlass.model.nodes import LocalNode
from windlass.model.services import Protocol, Service
from windlass.nodes.group_numbers import GroupNumbers
from windlass.nodes.services import NodeServices
from windlass.pipeline.stale_connections import has_udp

R = TypeVar("R")
_STEP = 100  # plans of Services before somebody else may have a turn: about a millisecond


class Place(NamedTuple):
    """What the host's part of every Service depends on."""

    node: LocalNode
    names: HostNames
    service_cidrs: tuple[IPNetwork, ...]
    mtu: int  # of the gateway


class Serving:
    def __init__(self, directory: Path | None = None) -> None:
        """The directory keeps group numbers across restarts."""
        self._numbers = GroupNumbers(directory)
        self._served = NodeServices(self._numbers)
        self._cluster = Cluster()
        self._unserved = Ledger()
        self._node: ServingNode | None = None
        self._place: Place | None = None
        self._claims = ItemClaims()  # what the Services ask of the host
        self._unclaimed: set[str] = set()  # those that have changed since they last asked
        # Those with UDP, as they were before they changed; at the start as an earlier agent had them, if that is known.
        self._outdated: dict[str, Service | None] = {}
        self._saved: Cluster | None = None

    @property
    def services(self) -> PersistentMap[Service]:
        """By namespace/name."""
        return self._served.services

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The very same object as long as none has come, gone or changed."""
        return self._served.problems

    @property
    def number_problem(self) -> str:
        """Why group numbers could not be kept on disk; empty if they are."""
        return self._numbers.problem

    @property
    def needs_node(self) -> bool:
        """Whether `following` needs the Node as it is now: objects on which it depends may have changed."""
        return concerns(self._unserved.owed, Concern.NODE)

    def hear(self, change: ClusterChange) -> None:
        self._cluster = change.cluster
        self._unserved.add(change.changes)

    def remember(self, saved: Cluster) -> None:
        """What an earlier agent on this Node followed last: what is different now was never told to the switch."""
        self._saved = saved

    def following(self, node: ServingNode | None = None) -> Generator[None, None, set[str]]:
        """Brings `services` up to what was heard; the keys of those that changed. In steps, to be taken to the end.

        Without a Node: it is as before.
        """
        first, self._node = self._node is None, node or self._node
        if self._node is None:
            return set()
        changes = self._unserved.take()
        saved, self._saved = self._saved, None
        if first and saved is not None:
            self._outdated.update((yield from _with_udp(saved, self._node)))
        knows_before = not first or saved is not None
        before = yield from self._served.following(self._cluster, self._node, changes)
        for key, service in before.items() if knows_before else ():
            if has_udp(service) or has_udp(self.services.get(key)):
                self._outdated.setdefault(key, service)
        self._unclaimed |= before.keys()
        return set(before)

    def take_outdated(self) -> dict[str, Service | None]:
        """Those with UDP that have changed since the last time, as they were before; None: they were not there."""
        outdated, self._outdated = self._outdated, {}
        return outdated

    def claiming(self, place: Place | None = None) -> Generator[None, None, HostChange]:
        """What the host has to change for the Services that changed; for all of them where the place did.

        Without a place: where they were before, and nothing if they have been nowhere yet. In steps as well.
        """
        keys: Collection[str] = self._unclaimed
        if place is not None and place != self._place:
            self._place = place
            keys = {*self.services, *self._claims.owners}
        if self._place is None:
            return HostChange()
        wanted: dict[str, frozenset[Item]] = {}
        for key in keys:
            wanted[key] = self._asked_by(key, self._place)
            if not len(wanted) % _STEP:
                yield
        self._unclaimed.clear()
        return self._claims.set_all(wanted)

    def host_plan(self) -> HostPlan:
        """All that Services ask of the host, as it has been claimed."""
        if self._place is None:
            return HostPlan()
        node, names, service_cidrs, mtu = self._place
        shared = plan_services(node, names, service_cidrs, node.node_port_networks, mtu=mtu)
        return shared | HostPlan(items=self._claims.items)

    def _asked_by(self, key: str, place: Place) -> frozenset[Item]:
        service = self.services.get(key)
        return plan_service(place.node, place.names, service, place.service_cidrs) if service else frozenset()


def _with_udp(cluster: Cluster, node: ServingNode) -> Generator[None, None, dict[str, Service]]:
    """Those of its Services, as this Node served them."""
    services = {
        key: service
        for key, service in cluster.services.items()
        if service.spec and any(port.protocol == Protocol.UDP.name for port in service.spec.ports or ())
    }
    slices = {key: one for key, one in cluster.slices.items() if service_of(one) in services}
    catalogue = Catalogue()
    yield from catalogue.following(Cluster(services=services, slices=slices), node)
    return catalogue.services


async def unhurried(steps: Generator[None, None, R]) -> R:
    """To the end of the steps, while others have their turn in between.

    To the end even when cancelled: what was followed by half would be lost for good.
    """
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: R = end.value
        return result
    except asyncio.CancelledError:
        for _ in steps:
            pass
        raise
