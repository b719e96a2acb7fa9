"""The metrics that come from Open vSwitch and the kernel, asked at each scrape, with limits on time and rate.

A source that does not answer is left out of that scrape, and does not delay the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from windlass.agent import metrics
from windlass.agent.preflights import switch_connections
from windlass.agent.readings import Reading, build_info
from windlass.nodes.config import Config
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

PATIENCE = 1.0  # seconds for all samples of a scrape together: Prometheus gives up after ten
FRESH = 1.0  # seconds for which an answer is reused

_NETFILTER = Path("/proc/sys/net/netfilter")
_STATISTICS = Path("/proc/net/stat/nf_conntrack")

Probe = Callable[[], Awaitable[Iterable[Reading]]]


class Samples:
    """The newest readings of all probes."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.readings: tuple[Reading, ...] = ()
        self._probes = probes
        self._taken = float("-inf")
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        async with self._lock:  # concurrent scrapes share one refresh
            if time.monotonic() - self._taken < FRESH:
                return
            tasks = [asyncio.ensure_future(probe()) for probe in self._probes]
            try:
                await asyncio.wait(tasks, timeout=PATIENCE)
            finally:
                self.readings = tuple(reading for task in tasks for reading in _answer(task))
                for task in tasks:
                    task.cancel()
            self._taken = time.monotonic()


def probes(config: Config) -> list[Probe]:
    async def versions() -> Iterable[Reading]:
        return [build_info(await _version(config))]

    async def switch_connections() -> Iterable[Reading]:
        return await _switch_connections(config)

    async def kernel_connections() -> Iterable[Reading]:
        return _kernel_connections()

    return [versions, kernel_connections, *([switch_connections] if config.is_userspace else [])]


def _answer(task: asyncio.Future[Iterable[Reading]]) -> Iterable[Reading]:
    if not task.done() or task.cancelled() or isinstance(task.exception(), SwitchRefusedError | SwitchUnreachableError):
        return ()
    return task.result()


async def _version(config: Config) -> str:
    """Such as 3.1.0; empty while ovs-vswitchd does not answer."""
    try:
        async with asyncio.timeout(PATIENCE / 2):
            answer = await ask(control_socket(config.ovs_run_directory), "version")
    except (SwitchRefusedError, SwitchUnreachableError, TimeoutError):
        return ""
    return answer.split("\n")[0].rpartition(" ")[2]


async def _switch_connections(config: Config) -> list[Reading]:
    found = await switch_connections(config)
    if found is None:
        return []
    return [
        Reading(metrics.CONNTRACK, found.used, ("openvswitch",)),
        Reading(metrics.CONNTRACK_LIMIT, found.limit, ("openvswitch",)),
        Reading(metrics.CONNTRACK_FAILURES, await _full(config), ("openvswitch", "full")),
    ]


async def _full(config: Config) -> int:
    """How often the table was full; 0 if this Open vSwitch has no such counter."""
    with suppress(SwitchRefusedError, ValueError):
        return int(await ask(control_socket(config.ovs_run_directory), "coverage/read-counter", "conntrack_full"))
    return 0


def _kernel_connections() -> Iterator[Reading]:
    """Those of the Node's network namespace; none if the kernel does not track connections."""
    for metric, file in ((metrics.CONNTRACK, "nf_conntrack_count"), (metrics.CONNTRACK_LIMIT, "nf_conntrack_max")):
        try:
            yield Reading(metric, float((_NETFILTER / file).read_text()), ("kernel",))
        except OSError:
            continue
    yield from _kernel_failures()


def _kernel_failures() -> Iterator[Reading]:
    """The file has a line of names, then a line for each CPU with hexadecimal counts."""
    try:
        names, *rows = (line.split() for line in _STATISTICS.read_text().splitlines())
    except (OSError, ValueError):
        return
    for reason in ("insert_failed", "drop"):
        if reason in names:
            total = sum(int(row[names.index(reason)], 16) for row in rows)
            yield Reading(metrics.CONNTRACK_FAILURES, total, ("kernel", reason))
