"""Measures on Linux or in Windows' Python: the time until Services, and then one change, are in a real Open vSwitch.

    python measured_services.py SERVICES CHANGES

Prints JSON: seconds until all flows and groups are in the switch, milliseconds of each change. It starts with decoded
objects, as `windlass bench services` does. It has no host, and the flows are those of a Windows Node on both systems.
`tools/test-windows --bench` runs it on both.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from switches import running_switch
from windlass.agent.logs import log_warnings_only
from windlass.agent.serving import Serving
from windlass.agent.switching import ProgrammedSwitch
from windlass.bench import service_states as states
from windlass.cluster.changes import ChangeSet
from windlass.cluster.objects import EndpointSlice
from windlass.cluster.sources import ClusterChange
from windlass.model.nodes import NodeState, OperatingSystem
from windlass.program import Owner, OwnerKind

BRIDGE = "br-int"
ENDPOINTS = 10  # of a Service
NODE = replace(states.LOCAL_NODE, os=OperatingSystem.WINDOWS)
SERVING = replace(states.SERVING_NODE, os=OperatingSystem.WINDOWS)


async def measure(services: int, changes: int, folder: Path) -> dict[str, object]:
    problems: list[object] = []
    cluster = states.cluster(services, ENDPOINTS)
    changed = [states.changed_slice(states.spread(number, services), ENDPOINTS, number) for number in range(changes)]
    milliseconds = []
    async with running_switch(folder) as running:
        await running.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail_mode=secure")
        serving = Serving()
        switch = ProgrammedSwitch(
            str(running.management(BRIDGE)), lambda _, found: problems.extend(found), problems.append
        )
        others = asyncio.all_tasks()
        async with asyncio.TaskGroup() as tasks:
            began = time.perf_counter()
            _run(serving, ClusterChange(cluster))
            switch.update(NodeState(NODE, services=serving.services), ())
            await switch.start(tasks)
            start = time.perf_counter() - began
            for one in changed:
                began = time.perf_counter()
                cluster = replace(cluster, slices={**cluster.slices, one.key: one})
                keys = _run(serving, ClusterChange(cluster, ChangeSet.of({EndpointSlice: {one.key}})))
                owners = [Owner(OwnerKind.SERVICE, key) for key in keys]
                switch.update(NodeState(NODE, services=serving.services), owners)
                await switch.bring(owners)
                milliseconds.append(1000 * (time.perf_counter() - began))
            flows = switch.flow_count
            for task in asyncio.all_tasks() - others:
                task.cancel()
    assert not problems, problems
    return {"start": start, "changes": milliseconds, "flows": flows}


def _run(serving: Serving, change: ClusterChange) -> set[str]:
    steps = serving.following(change, SERVING)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


if __name__ == "__main__":
    log_warnings_only()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2]), Path(folder)))
        sys.stdout.write(json.dumps(found) + "\n")
