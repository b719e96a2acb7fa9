"""Runs the load generator as a separate process, and commands it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from windlass.bench.load_plans import LoadPlan
from windlass.bench.tallies import Tally, merged
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child

LONGEST_TALLY = 1 << 24  # bytes: thousands of failures


class LoadProcess:
    """Collects the tallies since the load was last off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tallies: list[Tally] = []

    async def on(self, targets: Sequence[str]) -> None:
        """Load these targets and no others. Returns when no connection to the others is pending."""
        self._writer.write(msgspec.json.encode(targets) + b"\n")
        reply = await self._reader.readline()
        if not reply:
            raise LabError("it ended by itself")
        self._tallies.append(msgspec.json.decode(reply, type=Tally))

    async def off(self) -> Tally:
        """Stop the load. Returns the tally since it was last off."""
        await self.on(())
        tallies, self._tallies = self._tallies, []
        return merged(tallies)


@asynccontextmanager
async def loading(plan: LoadPlan, folder: Path) -> AsyncIterator[LoadProcess]:
    """The folder is a lab's: after a crash, `lab down` finds the process by it."""
    plan_file, socket = folder / "load.json", folder / "load.sock"
    socket.unlink(missing_ok=True)  # of a former load, which was killed
    plan_file.write_bytes(msgspec.json.encode(plan))
    process = Child(
        "the load",
        [sys.executable, "-m", "windlass.bench.load_generators", str(plan_file), str(socket)],
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
        raise LabError(str(error) if process.alive else process.failure(str(error))) from None
    finally:
        await process.kill()
