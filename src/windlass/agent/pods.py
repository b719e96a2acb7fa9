"""The Pods on this Node's bridge: which there are, and what the CNI server needs for them: ports, flows, addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from windlass.agent.areas import Area
from windlass.agent.config import Config
from windlass.agent.status import Status
from windlass.agent.switching import Switch
from windlass.cni.attachments import NotReadyError, PodNetwork
from windlass.host.plans import pod_mtu
from windlass.model.nodes import AttachedPod
from windlass.program import Kind, Owner
from windlass.switch.ovsdb import Database
from windlass.switch.pod_ports import PodPort, add_pod_port, attached_pods, delete_pod_port, pod_ports


class PodFlows:
    """The agent, as the CNI server asks it."""

    def __init__(self, config: Config, status: Status, switch: Switch, lock: asyncio.Lock) -> None:
        """`lock`: of all that changes the switch."""
        self._config = config
        self._status = status
        self._switch = switch
        self._lock = lock
        self._uplink_mtu = 0  # 0: the Node is not set up yet

    def open(self, uplink_mtu: int) -> None:
        """From now on Pods can be attached."""
        self._uplink_mtu = uplink_mtu

    def pod_network(self) -> PodNetwork:
        state = self._switch.state
        if state is None or not self._uplink_mtu:
            raise NotReadyError(f"it waits for: {self._status.waiting_for}")
        mtu = pod_mtu(state.node, self._uplink_mtu, self._config.mtu or None)
        cidrs = {family: state.node.pod_cidrs[family] for family in state.node.families}
        return PodNetwork(cidrs, mtu, self._config.is_userspace)

    async def programmed(self, pod: AttachedPod) -> None:
        async with self._lock:
            state = self._switch.state
            if state is None:
                raise NotReadyError(f"it waits for: {self._status.waiting_for}")
            if state.pods.get(pod.container_id) != pod:
                after = replace(state, pods={**state.pods, pod.container_id: pod})
                await self._switch.change(after, [Owner(Kind.POD, pod.container_id)])

    async def forget(self, container_id: str) -> None:
        async with self._lock:
            state = self._switch.state
            if state is not None and container_id in state.pods:
                rest = {key: pod for key, pod in state.pods.items() if key != container_id}
                await self._switch.change(replace(state, pods=rest), [Owner(Kind.POD, container_id)])


class BridgePorts:
    """The bridge's Pod ports, as the CNI server asks for them."""

    def __init__(self, database: Database, bridge: str) -> None:
        self._database = database
        self._bridge = bridge

    async def add_pod_port(self, port: PodPort) -> int:
        return await add_pod_port(self._database, self._bridge, port)

    async def delete_pod_port(self, interface: str) -> None:
        await delete_pod_port(self._database, self._bridge, interface)

    async def list_pod_ports(self) -> list[PodPort]:
        return pod_ports(self._database.view, self._bridge)


def present_pods(
    database: Database,
    bridge: str,
    known: Mapping[str, AttachedPod] | None,
    report: Callable[[Area, Iterable[str]], object],
) -> dict[str, AttachedPod]:
    """At the start (nothing is known) those that the bridge remembers; later those known, with their present ports."""
    remembered = attached_pods(database.view, bridge)
    by_container = {pod.container_id: pod for pod in remembered.pods}
    if known is None:
        report(Area.PORTS, remembered.problems)
        return by_container
    attached = {port.container_id for port in pod_ports(database.view, bridge)}
    return {
        container_id: by_container.get(container_id, pod)
        for container_id, pod in known.items()
        if container_id in attached
    }
