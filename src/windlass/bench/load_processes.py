"""loads.py at work in a process of its own: started, told which frontends to load, asked what came of it, ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from windlass.bench.loads import Plan
from windlass.bench.tallies import Tally, merged
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child

LONGEST_TALLY = 1 << 24  # bytes: thousands of failures


class LoadProcess:
    """Keeps what it said since it was last switched off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tallies: list[Tally] = []

    async def on(self, frontends: Sequence[str]) -> None:
        """These and no others. Returns when whatever was under way at those that stop has been answered, or not."""
        self._writer.write(msgspec.json.encode(frontends) + b"\n")
        said = await self._reader.readline()
        if not said:
            raise LabError("ended by itself")
        self._tallies.append(msgspec.json.decode(said, type=Tally))

    async def off(self) -> Tally:
        """What came of all the time since it was off before."""
        await self.on(())
        tallies, self._tallies = self._tallies, []
        return merged(tallies)


@asynccontextmanager
async def loading(plan: Plan, folder: Path) -> AsyncIterator[LoadProcess]:
    """The folder is a lab's: should we crash, the process is known as the lab's by it, and ended."""
    plan_file, socket = folder / "load.json", folder / "load.sock"
    socket.unlink(missing_ok=True)  # of one before, which is killed rather than stopped
    plan_file.write_bytes(msgspec.json.encode(plan))
    process = Child(
        "the load",
        [sys.executable, "-m", "windlass.bench.loads", str(plan_file), str(socket)],
        namespace=plan.servers[0].namespace,
        folder=folder,
        log=folder / "load.log",
        environment={},
    )
    try:
        await process.listening(socket)
        reader, writer = await asyncio.open_unix_connection(socket, limit=LONGEST_TALLY)
        try:
            yield LoadProcess(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()
    except LabError as error:
        raise LabError(str(error) if process.alive else process.complaint(str(error))) from None
    finally:
        await process.kill()
