"""One Node with a running switch, for an agent in a process of the benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_interface

from windlass.bench import service_states as states
from windlass.bench.cni import PLUGINS
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox import labs
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic, segments
from windlass.nodes.config import Config, DatapathType

MACHINE = Machine("node", states.NODE, (Nic(UPLINK, (ip_interface(f"{states.NODE_IP}/24"),)),))


@asynccontextmanager
async def standing() -> AsyncIterator[tuple[Config, str]]:
    """Yields the configuration of its agent, and the name of its network namespace."""
    with labs.opened() as lab:
        (namespace,) = await plugged(lab, MACHINE)
        folder = lab.node_folder(states.NODE)
        switch = ovs.SwitchProcesses.on_linux(states.NODE, namespace, folder / "ovs")
        config = Config(
            node_name=states.NODE,
            datapath_type=DatapathType(ovs.datapath_type()),
            run_directory=str(folder),
            state_directory=str(folder / "state"),
            ovs_run_directory=str(switch.folder),
            ipam_plugin=str(PLUGINS / "host-local"),
        )
        try:
            await switch.start()
            yield config, namespace
        finally:
            await switch.end()


async def plugged(lab: labs.Lab, *machines: Machine) -> list[str]:
    """Connect these machines, and no others, to a network of their own. Returns their network namespaces."""
    underlay = Underlay(lab, segments(machines))
    await asyncio.to_thread(underlay.create)
    return [await asyncio.to_thread(underlay.plug, machine) for machine in machines]
