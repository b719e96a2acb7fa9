"""`windlass bench windows`: `windlass bench services` with 2,000 Services, on a Windows Node under Wine.

That is the whole agent in Windows' Python, on Open vSwitch for Windows. The floor is the same measurement on Linux, by
turns on the same machine: so the ratio is what Windows' Python, Open vSwitch for Windows and Wine cost together.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace

import msgspec

from windlass.bench import bench_nodes, node_runs
from windlass.bench import service_states as states
from windlass.bench.agent_runs import in_new_process
from windlass.bench.node_runs import StartAndChanges, Workload
from windlass.bench.reports import BenchReport, figure, percentiles, this_machine
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.wine.windows_nodes import WindowsNode
from windlass.lab.wine.wine_machines import WindowsPrograms

WORKLOAD = Workload(services=2000, endpoints=10, changes=200, settling=3.0)
ROUNDS = 3
SECONDS_UNDER_WINE = seconds(300)


async def run(say: Say = print) -> BenchReport:
    """Takes about two minutes."""
    programs = WindowsPrograms.default()
    programs.check()
    linux: list[StartAndChanges] = []
    windows: list[StartAndChanges] = []
    for number in range(1, ROUNDS + 1):  # by turns, so that other work on the machine affects both
        async with bench_nodes.standing() as (config, namespace):
            linux.append(await in_new_process(node_runs.on_linux, config, namespace, WORKLOAD))
        windows.append(await _under_wine(programs))
        say(f"round {number} of {ROUNDS}: start {windows[-1].start:.2f} s; on Linux {linux[-1].start:.2f} s")
    start, start_floor = (statistics.median(one.start for one in found) for found in (windows, linux))
    changes, changes_floor = ([one for run in found for one in run.changes] for found in (windows, linux))
    return BenchReport(
        "windows",
        this_machine(),
        (
            figure(f"agent-start-{WORKLOAD.services}x{WORKLOAD.endpoints}", start, "s", start_floor),
            *percentiles(f"one-change-{WORKLOAD.services}", changes, "ms", changes_floor),
            figure("flows", windows[-1].flows, "flows", linux[-1].flows),
        ),
    )


async def _under_wine(programs: WindowsPrograms) -> StartAndChanges:
    workload = msgspec.json.encode(WORKLOAD).decode()
    with labs.opened() as lab:
        (namespace,) = await bench_nodes.plugged(lab, bench_nodes.MACHINE)
        measuring = replace(programs, agent=("windlass.bench.node_runs", workload))
        node = WindowsNode(states.NODE, namespace, lab.node_folder(states.NODE), measuring)
        try:
            await node.boot(0)
            await node.switch.start()
            process = node.start_agent({"nodeName": states.NODE})
            try:
                await asyncio.wait([process.exited], timeout=SECONDS_UNDER_WINE)
            finally:
                await process.kill()
        finally:
            await node.end()
        printed = process.log.read_text(errors="replace").splitlines()
        try:
            return msgspec.json.decode(printed[-1] if printed else "", type=StartAndChanges)
        except msgspec.DecodeError:
            raise LabError(process.failure("has not measured anything")) from None
