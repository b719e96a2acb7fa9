"""Child processes of the lab: each runs in a network namespace, writes a log, and ends with the lab."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from windlass.host.linux import namespaces
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.time_limits import seconds

SECONDS_TO_START = seconds(20.0)
SECONDS_TO_STOP = seconds(5.0)
SECONDS_BETWEEN_POLLS = 0.005


def program(name: str) -> str:
    """The path of an installed program, also in /usr/sbin and /sbin, which are not on every PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise LabError(f"{name} is not installed; `make setup` installs what the lab needs")
    return found


def output_of(name: str, *arguments: str, folder: Path | None = None) -> str:
    """Runs an installed program and returns its output. Raises LabError with its last error message if it fails."""
    done = subprocess.run([program(name), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no error message"]
        raise LabError(f"`{name} {' '.join(arguments)}` failed: {said[-1]}")
    return done.stdout


async def run(
    *command: str, content: bytes = b"", environment: Mapping[str, str] | None = None
) -> tuple[int, bytes, bytes]:
    """Runs a command with this standard input; returns its status, output and errors. Kills it if it is cancelled."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    try:
        output, errors = await process.communicate(content)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output, errors


def in_another_boot(boot: Path) -> list[str]:
    """A command prefix under which a program reads this file as the kernel's boot id."""
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return [program("unshare"), "--mount", "--propagation=slave", program("sh"), "-c", script, str(boot)]


class Child:
    """A running process. Start it in the event loop's thread: the kernel kills it when the starting thread ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        namespace: str,
        folder: Path,  # its working directory
        log: Path,
        environment: Mapping[str, str] | None = None,  # added to the lab's own
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output, namespaces.entered(namespaces.path_of(namespace)):
            self._process = subprocess.Popen(
                # The kernel kills it when the lab is killed. In its own session it does not receive the lab's Ctrl-C.
                [program("setpriv"), "--pdeathsig", "KILL", "--", *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._handle = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    async def until(self, missing: Callable[[], Awaitable[str | None]], what: str, limit: float, poll: float) -> None:
        """Polls until nothing is missing: then `missing` returns None, before that a text for the error.

        If the process ends or takes longer than `limit`, the error says `what` and quotes its log.
        """
        last: str | None = None
        try:
            async with asyncio.timeout(limit):
                while self.alive:
                    last = await missing()
                    if last is None:
                        return
                    await asyncio.wait([self.exited], timeout=poll)
        except TimeoutError:
            raise LabError(self.failure(f"{what} after {limit:.0f} s{f': {last}' if last else ''}")) from None
        raise LabError(self.failure(f"ended with status {self.exited.result()}"))

    async def listening(self, socket: Path) -> None:
        """Waits until it listens on the unix socket."""

        async def missing() -> str | None:
            try:
                _, writer = await asyncio.open_unix_connection(socket)
                writer.close()
                await writer.wait_closed()
            except OSError as error:
                return str(error)
            return None

        await self.until(missing, f"does not listen on {socket}", SECONDS_TO_START, SECONDS_BETWEEN_POLLS)

    async def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if it does not end in time."""
        self._signal(signal.SIGTERM)
        await asyncio.wait([self.exited], timeout=SECONDS_TO_STOP)
        await self.kill()

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.exited

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            signal.pidfd_send_signal(self._handle, number)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.exited.set_result(self._process.wait())

    def failure(self, what: str) -> str:
        """An error message: the name of the process, what went wrong, and the end of its log."""
        last = self.log.read_text(errors="replace").splitlines()[-5:] if self.log.exists() else []
        return f"{self.name} {what}; its log ends:\n  " + "\n  ".join(last)
