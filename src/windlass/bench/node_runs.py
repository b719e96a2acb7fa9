"""The measurement of `windlass bench windows`, on Linux and in Windows' Python: an agent with many Services.

It is that of `windlass bench services`, on a Node that an agent has taken over before: events are decoded objects, each
change is one EndpointSlice. On Windows it runs as a program, prints JSON, and its arguments are those of `main`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.bench import bare_agents
from windlass.bench import service_states as states
from windlass.bench.bare_agents import Events, InvalidRunError
from windlass.host.protocol import Host
from windlass.model.nodes import OperatingSystem
from windlass.nodes import config as configs
from windlass.nodes.config import Config


class Workload(Struct, frozen=True):
    services: int
    endpoints: int  # of each
    changes: int
    settling: float  # seconds after the start in which the agent checks everything again, and saves its state


class StartAndChanges(Struct, frozen=True):
    start: float  # seconds until everything was in the switch and the Node was ready
    changes: list[float]  # milliseconds from each event until the switch has confirmed the result
    flows: int


def on_linux(config: Config, namespace: str, workload: Workload) -> StartAndChanges:
    """In the Node's namespace."""
    from windlass.host.linux import namespaces  # noqa: PLC0415 - cannot be imported on Windows

    with namespaces.entered(namespaces.path_of(namespace)):
        return _measured(config, workload)


def _measured(config: Config, workload: Workload) -> StartAndChanges:
    bare_agents.configure_process()
    return asyncio.run(_measure(config, workload))


async def _measure(config: Config, work: Workload) -> StartAndChanges:
    async with bare_agents.running(config, _host(config), Events(states.cluster(1, 1, _OS))):
        pass  # from now on the bridge has the NIC, and the host its settings
    events = Events(states.cluster(work.services, work.endpoints, _OS))
    spread = (states.spread(number, work.services) for number in range(work.changes))
    slices = [states.changed_slice(one, work.endpoints, number) for number, one in enumerate(spread)]
    async with bare_agents.running(config, _host(config), events) as (agent, start):
        await asyncio.sleep(work.settling)
        changes = [await bare_agents.milliseconds_of_change(agent, events, "slices", {one.key: one}) for one in slices]
        switch = agent.view.switch
        if switch.trouble:
            raise InvalidRunError(f"the figures are invalid, because the switch has problems: {switch.trouble}")
        return StartAndChanges(start, changes, switch.flow_count)


if sys.platform == "win32":
    from windlass.host.windows import hosts

    _OS = OperatingSystem.WINDOWS

    def _host(config: Config) -> Host:
        return hosts.WindowsHost(Path(config.state_directory))
else:
    from windlass.host.linux import hosts

    _OS = OperatingSystem.LINUX

    def _host(config: Config) -> Host:
        return hosts.LinuxHost(Path(config.state_directory))


def main(workload: str, _option: str, file: str) -> None:
    """`WORKLOAD --config FILE`, as the lab starts an agent."""
    measured = _measured(configs.load(Path(file)), msgspec.json.decode(workload, type=Workload))
    sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
