"""The Pods on this Node's bridge: which there are, and what the CNI server needs for them: ports, flows, addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import structlog

from windlass.agent.areas import Area, Report
from windlass.agent.late_ports import LatePorts
from windlass.agent.pod_records import PodRecords
from windlass.agent.policing import Policing
from windlass.agent.status import AgentStatus
from windlass.agent.switching import ProgrammedSwitch
from windlass.cni.attachments import NotReadyError, PodNetwork
from windlass.host.plans import pod_mtu
from windlass.host.protocol import AttachedLink
from windlass.model.nodes import AttachedPod, NodeState
from windlass.nodes.config import Config
from windlass.program import Owner, OwnerKind
from windlass.switch.bridges import port_number
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.pod_ports import (
    PodPort,
    add_pod_port,
    attached_pods,
    declare_pod_port,
    delete_pod_port,
    pod_ports,
    unused_pod_ports,
)

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class PodFlows:
    """What the CNI server needs from the agent: the network of Pods, and their flows."""

    _config: Config
    _status: AgentStatus
    _switch: ProgrammedSwitch
    _policing: Policing
    uplink_mtu: int = 0  # 0: the Node is not set up yet, and no Pod can be attached

    def pod_network(self) -> PodNetwork:
        state = self._state()
        if not self.uplink_mtu:
            raise self._not_ready()
        mtu = pod_mtu(state.node, self.uplink_mtu, self._config.mtu or None)
        cidrs = {family: state.node.pod_cidrs[family] for family in state.node.families}
        return PodNetwork(cidrs, mtu, max(mtu, self.uplink_mtu), self._config.is_userspace)

    async def until_ready(self) -> None:
        await self._status.wait_until(lambda: self._status.ready)

    async def programmed(self, pod: AttachedPod, uid: str = "") -> None:
        """Returns when the switch has the flows of this Pod, and those of the policies that select it.

        SwitchRefusedError if it refuses one of the Pod's own flows: without that, policies may not hold for the Pod.
        """
        self._state()  # raises NotReadyError before anything is learned about a Pod that gets no port
        await self._policing.learn(pod.key, uid)
        state = self._state()
        if state.pods.get(pod.container_id) != pod:
            self._update(replace(state, pods={**state.pods, pod.container_id: pod}), pod.container_id)
        else:
            self._update(state)  # of a Pod that it has, the agent may have learned more
        await self._bring(pod.container_id)
        if refused := self._switch.refused(Owner(OwnerKind.POD, pod.container_id)):
            raise SwitchRefusedError(refused[0])

    async def forget(self, container_id: str) -> None:
        await self._policing.is_read()
        state = self._switch.state
        if state is not None and container_id in state.pods:
            rest = {key: pod for key, pod in state.pods.items() if key != container_id}
            self._update(replace(state, pods=rest), container_id)
        await self._bring(container_id)

    def _update(self, state: NodeState, *container_ids: str) -> None:
        """Update the state after these Pods came, went or changed."""
        policed_state, policed = self._policing.applied(state)
        self._switch.update(policed_state, [*(Owner(OwnerKind.POD, one) for one in container_ids), *policed])

    async def _bring(self, container_id: str) -> None:
        owner = Owner(OwnerKind.POD, container_id)
        if self._switch.owes(owner):
            await self._switch.bring([owner])

    def _state(self) -> NodeState:
        if self._switch.state is None:
            raise self._not_ready()
        return self._switch.state

    def _not_ready(self) -> NotReadyError:
        return NotReadyError(f"it waits for: {self._status.waiting_for}")


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of restoring the bridge's Pod ports."""

    containers: frozenset[str]  # the containers whose ports were created again
    problems: tuple[str, ...]


@dataclass(slots=True, eq=False)
class RecordedPodPorts:
    """The bridge's Pod ports, as the CNI server asks for them, each with a record on disk."""

    _database: Database
    _bridge: str
    _records: PodRecords
    _links: Callable[[], Awaitable[Sequence[AttachedLink]]]  # lists the Pod links that the host has
    _late: LatePorts | None = None  # where interfaces appear after their ports were added
    _removing: asyncio.Lock = field(default_factory=asyncio.Lock)  # a port that is being removed must not be restored
    _adding: set[str] = field(default_factory=set)  # interfaces of ports that are not there yet, and so not lost either

    async def add_pod_port(self, port: PodPort, uid: str = "") -> int | None:
        # Side by side, because the disk takes milliseconds. A port without a record gets one when the agent starts.
        self._adding.add(port.interface)
        recording = asyncio.ensure_future(asyncio.to_thread(self._records.save, port))
        try:
            if self._late is None:
                return await add_pod_port(self._database, self._bridge, port)
            await declare_pod_port(self._database, self._bridge, port)
            if all(unused.interface != port.interface for unused in self._unused()):
                return await port_number(self._database, self._bridge, port.interface)
            self._late.expect(port, uid)
            return None
        finally:
            await recording
            self._adding.discard(port.interface)

    async def delete_pod_port(self, interface: str) -> None:
        async with self._removing:
            if self._late:
                self._late.forget(interface)
            await delete_pod_port(self._database, self._bridge, interface)
            await asyncio.to_thread(self._records.forget, interface)

    async def list_pod_ports(self) -> list[PodPort]:
        there = pod_ports(self._database.view, self._bridge)
        known = {port.interface for port in there}
        return [*there, *(port for port in self._records.ports.values() if port.interface not in known)]

    async def restore(self) -> Restored:
        """Add the recorded ports that the bridge lacks, and record the ports that have no record.

        Without a link on the host the Pod is gone: its record is deleted.
        """
        async with self._removing:
            there = pod_ports(self._database.view, self._bridge)
            problems = await asyncio.to_thread(self._record, there)
            lost = self._records.interfaces - {port.interface for port in there} - self._adding
            declared = []
            for port in await self._with_link(lost) if lost else ():
                try:
                    await declare_pod_port(self._database, self._bridge, port)
                    declared.append(port)
                except SwitchRefusedError as error:
                    problems.append(_not_restored(port, error))
        if self._late:
            for port in self._unused():
                self._late.expect(port)
            declared = []  # their numbers come with their interfaces
        containers = set()
        for port in declared:
            try:
                await port_number(self._database, self._bridge, port.interface)
                containers.add(port.container_id)
            except SwitchRefusedError as error:
                problems.append(_not_restored(port, error))
        if containers:
            _log.warning("the bridge had lost ports of Pods; they are restored", pods=len(containers))
        return Restored(frozenset(containers), (*problems, *self._records.problems))

    def _unused(self) -> list[PodPort]:
        return unused_pod_ports(self._database.view, self._bridge)

    async def remove_stale(self) -> None:
        """Removes ports of Pods that went with a reboot. The Windows datapath would create an interface for each."""
        if self._late is None:
            return
        async with self._removing:
            links = {link.host_interface for link in await self._links()}
            for port in pod_ports(self._database.view, self._bridge):
                if port.interface not in links | self._adding:
                    _log.warning("the Pod of this port is gone; the port is removed", port=port.interface)
                    self._late.forget(port.interface)
                    await delete_pod_port(self._database, self._bridge, port.interface)
                    await asyncio.to_thread(self._records.forget, port.interface)

    def _record(self, ports: Sequence[PodPort]) -> list[str]:
        """Record ports without a readable record, for example those of an earlier version of the agent."""
        try:
            for port in ports:
                if port.interface not in self._records.ports:
                    self._records.save(port)
        except OSError as error:
            return [f"the record of a Pod's port cannot be written: {error}; it is tried again"]
        return []

    async def _with_link(self, lost: AbstractSet[str]) -> list[PodPort]:
        """The lost ports whose Pod still exists. The other records are deleted."""
        links = {link.host_interface: link.namespace for link in await self._links()}
        recorded = [port for interface, port in self._records.ports.items() if interface in lost]
        stale = {port.interface for port in recorded if port.netns and links.get(port.interface) != port.netns}
        for interface in stale | (lost - links.keys()):
            await asyncio.to_thread(self._records.forget, interface)
        return [port for port in recorded if port.interface in self._records.ports]


def present_pods(
    database: Database, bridge: str, known: Mapping[str, AttachedPod] | None, restored: AbstractSet[str], report: Report
) -> dict[str, AttachedPod]:
    """At the start (`known` is None), all Pods with a port; later, known and restored Pods with their present ports."""
    remembered = attached_pods(database.view, bridge)
    by_container = {pod.container_id: pod for pod in remembered.pods}
    if known is None:
        report(Area.PORTS, remembered.problems)
        return by_container
    attached = {port.container_id for port in pod_ports(database.view, bridge)}
    kept = {container_id: pod for container_id, pod in known.items() if container_id in attached}
    wanted = known.keys() | restored
    present = {container_id: by_container[container_id] for container_id in by_container if container_id in wanted}
    return kept | present


def _not_restored(port: PodPort, error: SwitchRefusedError) -> str:
    return f"Pod {port.namespace}/{port.name} has no network, its port was lost and cannot be made again: {error}"
