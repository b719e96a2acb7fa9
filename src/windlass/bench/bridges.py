"""A switch with one empty bridge, and `ovs-ofctl` loading flows into it from files: the floor of a sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from windlass.host.linux import namespaces
from windlass.lab.network import ovs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.processes import program as program_path
from windlass.openflow import ofctl
from windlass.program import Program

BRIDGE = "br-bench"


@asynccontextmanager
async def empty_bridge(lab: labs.Lab) -> AsyncIterator[Path]:
    """Yields its management socket."""
    namespace = lab.namespace("bench")
    namespaces.create(namespace)
    switch = ovs.SwitchProcesses.on_linux("bench", namespace, lab.node_folder("bench"))
    try:
        await switch.start()
        datapath = f"datapath_type={ovs.datapath_type()}"
        await command(
            "ovs-vsctl",
            f"--db=unix:{switch.folder}/db.sock",
            *("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, datapath, "fail_mode=secure"),
        )
        yield switch.folder / f"{BRIDGE}.mgmt"
    finally:
        await switch.end()


async def empty(socket: Path) -> None:
    await ofctl_output("del-groups", socket)
    await ofctl_output("del-flows", socket)


@dataclass(slots=True)
class OfctlFloor:
    """`ovs-ofctl` with the flows and groups of a Program, with or without `--bundle`, whichever is quicker."""

    flows: Path
    groups: Path | None  # None: there are none, and a process that loads nothing would make the floor too high
    _seconds: dict[tuple[str, ...], list[float]] = field(default_factory=lambda: {(): [], ("--bundle",): []})

    async def measure(self, socket: Path) -> str:
        """Load the bridge once in each way. Returns a text with the times."""
        for options, seconds in self._seconds.items():
            await empty(socket)
            began = time.perf_counter()
            if self.groups is not None:
                await ofctl_output(*options, "add-groups", socket, self.groups)
            await ofctl_output(*options, "add-flows", socket, self.flows)
            seconds.append(time.perf_counter() - began)
        ways = {" ".join(("ovs-ofctl", *options)): seconds[-1] for options, seconds in self._seconds.items()}
        # Keep only the quicker way: the difference is large.
        quicker = min(self._seconds, key=lambda options: self._seconds[options][-1])
        self._seconds = {quicker: self._seconds[quicker]}
        return ", ".join(f"{way} {seconds:.2f} s" for way, seconds in ways.items())

    @property
    def seconds(self) -> list[float]:
        (seconds,) = self._seconds.values()
        return seconds


def ofctl_floor(program: Program, folder: Path) -> OfctlFloor:
    """Writes the files that `ovs-ofctl` loads."""
    flows, groups = folder / "flows.txt", folder / "groups.txt"
    distinct = dict.fromkeys(flow for part in program.values() for flow in part.flows)
    flows.write_text("".join(f"{ofctl.flow_text(flow)}\n" for flow in distinct))
    listed = "".join(f"{ofctl.group_text(group)}\n" for part in program.values() for group in part.groups)
    groups.write_text(listed)
    return OfctlFloor(flows, groups if listed else None)


async def alternate(program: Program, rounds: int, measure: Callable[[Path, int, str], Awaitable[None]]) -> OfctlFloor:
    """Calls `measure` with an empty bridge, the number of the round and the times of the floor.

    Both alternate, so that other work on the machine affects both.
    """
    with labs.opened() as lab:
        floor = ofctl_floor(program, lab.folder)
        async with empty_bridge(lab) as socket:
            for number in range(1, rounds + 1):
                theirs = await floor.measure(socket)
                await empty(socket)
                await measure(socket, number, theirs)
    return floor


def check_flows(found: int, expected: int) -> None:
    if found != expected:
        raise labs.LabError(f"the figures are invalid: the switch has {found} flows instead of {expected}")


async def ofctl_output(*arguments: str | Path) -> str:
    return await command("ovs-ofctl", "-O", "OpenFlow15", *map(str, arguments))


async def command(name: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        program_path(name), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()  # may have warnings about a long poll interval
    if process.returncode != 0:
        raise labs.LabError(f"{name} {' '.join(arguments)} ended with status {process.returncode}: {errors.decode()}")
    return output.decode()
