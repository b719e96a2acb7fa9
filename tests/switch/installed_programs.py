"""Bridges for tests, and Programs that are kept in them for the duration of a test, as the agent does."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from switches import Switch
from windlass.openflow import ofctl
from windlass.openflow.actions import Ct, Output, ToGroup
from windlass.openflow.fields import reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows as wire
from windlass.program import Owner, Part
from windlass.switch.programs import InstalledProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from windlass.program import Program


@asynccontextmanager
async def installed(path: str, program: Program, **options: Callable) -> AsyncIterator[InstalledProgram]:
    """In sync with the bridge at this management socket; the connection ends with the block."""
    kept = InstalledProgram(path, program, **options)
    keeper = asyncio.create_task(kept.keep())
    try:
        await kept.synced()
        yield kept
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


_names = (f"br{number}" for number in itertools.count())


class Bridge:
    """A bridge as another client than the agent sees it."""

    def __init__(self, switch: Switch, name: str) -> None:
        self.switch = switch
        self.path = str(switch.management(name))

    @classmethod
    async def new(cls, switch: Switch) -> Bridge:
        name = next(_names)
        await switch.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure")
        return cls(switch, name)

    async def ofctl(self, command: str, *arguments: str) -> str:
        return await self.switch.ofctl(command, self.path, *arguments)

    async def holds(self, program: Mapping[Owner, Part]) -> bool:
        """Compared by `ovs-ofctl` in text form, which is independent of the encoding by which flows were installed."""
        texts = [
            f"cookie={wire.encode(flow).cookie:#x},{ofctl.flow_text(flow)}"
            for part in program.values()
            for flow in part.flows
        ]
        (self.switch.rundir / "flows.txt").write_text("\n".join(texts))
        groups = {group.identity for part in program.values() for group in part.groups}
        dumped = await self.ofctl("dump-groups")
        try:
            await self.switch.ofctl("diff-flows", f"unix:{self.path}", "./flows.txt")
        except RuntimeError as error:
            if "exit status 2" not in str(error):  # that they differ
                raise
            return False
        return {int(line.partition("group_id=")[2].partition(",")[0]) for line in dumped.splitlines()[1:]} == groups


def flow(value: int, port: int = 1, *, table: int = 0) -> Flow:
    return Flow(table, 100, match(reg(0)(value)), (Output(port),), f"for {value}")


def service(number: int, *endpoints: int) -> Part:
    """A flow that leads to a group."""
    buckets = tuple(Bucket(port, (Ct(zone=1, commit=True), Output(port))) for port in endpoints)
    return Part(
        (Flow(40, 100, match(reg(1)(number)), (ToGroup(number),), "a Service"),), (Group(number, buckets, "endpoints"),)
    )
