"""Pod ports whose interface the host creates after CNI ADD has returned: on Windows, when the first container starts.

Until then the port is in the switch's database without a number. Then it gets a number, and its flows.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn, Protocol

from windlass.agent.areas import Area, Report
from windlass.cni.attachments import NotReadyError, PodProgrammer
from windlass.host.protocol import HostError, HostPods
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.pod_ports import PodPort, use_interface
from windlass.switch.streams import SwitchUnreachableError

_REFUSALS = (HostError, SwitchRefusedError, SwitchUnreachableError)
# No event says when Windows or the switch will accept a request that it refused.
SECONDS_BETWEEN_ATTEMPTS = 2.0


class PodAgent(PodProgrammer, Protocol):
    async def until_ready(self) -> None:
        """Returns when the agent can attach Pods."""


class LatePorts:
    def __init__(self, database: Database, bridge: str, pods: HostPods, agent: PodAgent, report: Report) -> None:
        self._database = database
        self._bridge = bridge
        self._pods = pods
        self._agent = agent
        self._report = report
        self._new: asyncio.Queue[tuple[PodPort, str]] = asyncio.Queue()
        self._awaited: dict[str, asyncio.Task[None] | None] = {}  # by interface; None: its task has not begun
        self._problems: dict[str, str] = {}  # by interface

    def expect(self, port: PodPort, uid: str = "") -> None:
        """`uid`: of the Pod object, if it is known."""
        if port.interface not in self._awaited:
            self._awaited[port.interface] = None
            self._new.put_nowait((port, uid))

    def forget(self, interface: str) -> None:
        """Call it when the Pod of this interface is removed."""
        if task := self._awaited.pop(interface, None):
            task.cancel()
        self._set_problem(interface, "")

    async def keep(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            while True:
                port, uid = await self._new.get()
                if port.interface in self._awaited:  # `forget` was not called in between
                    self._awaited[port.interface] = tasks.create_task(self._complete(port, uid))
        raise AssertionError  # the loop does not end

    async def _complete(self, port: PodPort, uid: str) -> None:
        while True:
            try:
                await self._pods.appeared(port.interface, self._agent.pod_network().mtu)
                number = await use_interface(self._database, self._bridge, port.interface)
                await self._agent.programmed(port.attached(number), uid)
            except NotReadyError as error:
                self._set_problem(port.interface, _without_network(port, error))
                await self._agent.until_ready()
            except _REFUSALS as error:
                self._set_problem(port.interface, _without_network(port, error))
                await asyncio.sleep(SECONDS_BETWEEN_ATTEMPTS)
            else:
                self._set_problem(port.interface, "")
                self._awaited.pop(port.interface, None)
                return

    def _set_problem(self, interface: str, problem: str) -> None:
        if self._problems.get(interface, "") == problem:
            return
        self._problems[interface] = problem
        self._report(Area.LATE_PORTS, sorted(filter(None, self._problems.values())))


def _without_network(port: PodPort, error: Exception) -> str:
    return f"Pod {port.namespace}/{port.name} has no network yet: {error}"
