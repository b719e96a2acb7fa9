"""The Services of this Node from one state of the cluster to the next.

`cluster.catalogues` decides how a Service is served. Connections that a change has outdated are flushed at
once, and again a moment later; which connections these are is decided in `pipeline.stale_connections`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from windlass.agent.switching import ProgrammedSwitch
from windlass.cluster.catalogues import Catalogue, service_of
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange
from windlass.model.mappings import PersistentMap
from windlass.model.nodes import LocalNode
from windlass.model.services import Protocol, ServedService
from windlass.nodes.group_numbers import GroupNumbers
from windlass.nodes.services import NodeServices
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.stale_connections import has_udp, stale
from windlass.program import Owner, OwnerKind

AT_ONCE = 32  # messages that a change waits for; the switch searches all its connections for each
TOGETHER = 8  # messages before the switch may do other work
PAUSE = 1.0  # seconds after a change in which the switch may still handle packets by its former flows

Outdated = tuple[str, ServedService | None]  # the key of a Service, and the Service before the change


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
        """The Services of this Node, by namespace/name."""
        return self._served.services

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The same object as long as no problem is added, removed or changed."""
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


@dataclass(slots=True, eq=False)
class ConnectionFlusher:
    """Flushes the conntrack entries of UDP connections that changes of Services have outdated."""

    _serving: Serving
    _switch: ProgrammedSwitch
    _again: list[Outdated] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def flush(self) -> None:
        """Flush connections of changed Services whose flows are in the switch; if they are many, only a part."""
        owed, state = self._switch.owed, self._switch.state
        outdated = self._serving.take_outdated(lambda key: Owner(OwnerKind.SERVICE, key) not in owed)
        if outdated and state:
            await self._switch.flush(self._stale(outdated.items(), state.node)[:AT_ONCE])
            self._put(outdated)

    async def flush_again(self) -> NoReturn:
        """Repeat each flush later: the switch may have used its former flows for a moment, and tracked them again.

        Which connections are outdated is decided again: the endpoint may be back.
        """
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(PAUSE)
            state, outdated, self._again = self._switch.state, self._again, []
            stale = self._stale(outdated, state.node) if state else []
            for index in range(0, len(stale), TOGETHER):
                if not await self._switch.flush(stale[index : index + TOGETHER]):
                    self._put(dict(outdated))  # no switch; the kernel datapath keeps its connections meanwhile
                    break

    def _put(self, outdated: Mapping[str, ServedService | None]) -> None:
        self._again += outdated.items()
        self._woken.set()

    def _stale(self, outdated: Iterable[Outdated], node: LocalNode) -> list[Flush]:
        services = self._serving.services
        found = (one for key, before in outdated for one in stale(before, services.get(key), node))
        return list(dict.fromkeys(found))
