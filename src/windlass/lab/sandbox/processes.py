"""Child processes of the lab: each runs in a network namespace, writes a log, and ends with the lab."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
        environment: Mapping[str, str],  # added to the lab's own
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
                env={**os.environ, **environment},
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

    async def listening(self, socket: Path) -> None:
        """Waits until it listens on the unix socket. If it ends or takes too long, the error quotes its log."""
        try:
            async with asyncio.timeout(SECONDS_TO_START):
                while self.alive:
                    with suppress(OSError):
                        _, writer = await asyncio.open_unix_connection(socket)
                        writer.close()
                        await writer.wait_closed()
                        return
                    await asyncio.wait([self.exited], timeout=SECONDS_BETWEEN_POLLS)
        except TimeoutError:
            raise LabError(self.failure(f"does not listen on {socket} after {SECONDS_TO_START:.0f} s")) from None
        raise LabError(self.failure(f"ended with status {self.exited.result()}"))

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
