"""The metrics that come from Open vSwitch and the kernel, asked at each scrape, with limits on time and rate.

A source that does not answer is left out of that scrape, and does not delay the others.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import windlass
from windlass.agent import metrics
from windlass.agent.metrics import Reading
from windlass.agent.preflights import switch_connections
from windlass.agent.switching import ProgrammedSwitch
from windlass.host.forwarded_clients import ForwardedClients, Refusal
from windlass.model.nodes import OperatingSystem
from windlass.nodes.config import Config
from windlass.pipeline.policies import counted_denials
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.packet_counts import PacketCounts
from windlass.switch.streams import SwitchUnreachableError

PATIENCE = 1.0  # seconds for all samples of a scrape together: Prometheus gives up after ten
FRESH = 1.0  # seconds for which an answer is reused

_NETFILTER = Path("/proc/sys/net/netfilter")
_STATISTICS = Path("/proc/net/stat/nf_conntrack")

Sampler = Callable[[], Awaitable[Iterable[Reading]]]


class Samples:
    """The newest readings of all probes."""

    def __init__(self, probes: Sequence[Sampler]) -> None:
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


def probes(config: Config, switch: ProgrammedSwitch) -> list[Sampler]:
    async def versions() -> Iterable[Reading]:
        labels = windlass.__version__, platform.python_version(), await _version(config)
        return [Reading(metrics.BUILD_INFO, 1, labels)]

    async def suppressed() -> Iterable[Reading]:
        await switch.count_suppressed()
        return ()  # the switch has the counts

    in_userspace = [partial(_switch_connections, config)] if config.is_userspace else []
    return [versions, _kernel_connections, suppressed, _denied_packets(switch), *in_userspace]


def _denied_packets(switch: ProgrammedSwitch) -> Sampler:
    """Denied packets, as the flows of the switch count them."""
    counts: PacketCounts | None = None

    async def readings() -> Iterable[Reading]:
        nonlocal counts
        if switch.state is None:
            return []
        counts = counts or PacketCounts(counted_denials(switch.state.node))
        await switch.requests.count(counts)
        new = sum(total for name, total in counts.totals.items() if name.startswith("new"))
        return [
            Reading(metrics.DENIED_PACKETS, new, ("new",)),
            Reading(metrics.DENIED_PACKETS, counts.totals["existing"], ("existing",)),
        ]

    return readings


def forwarded(clients: ForwardedClients) -> Sampler:
    async def readings() -> Iterable[Reading]:
        if clients.state is None or clients.state.node.os is not OperatingSystem.WINDOWS:
            return []
        return [Reading(metrics.FORWARDED_REFUSALS, clients.refused[reason], (reason.value,)) for reason in Refusal]

    return readings


def _answer(task: asyncio.Future[Iterable[Reading]]) -> Iterable[Reading]:
    if not task.done() or task.cancelled() or isinstance(task.exception(), SwitchRefusedError | SwitchUnreachableError):
        return ()
    return task.result()


async def _version(config: Config) -> str:
    """The version, such as 3.1.0; empty while ovs-vswitchd does not answer."""
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


async def _kernel_connections() -> list[Reading]:
    """Connections of the Node's network namespace; none if the kernel does not track connections."""
    found = [*_kernel_failures()]
    for metric, file in ((metrics.CONNTRACK, "nf_conntrack_count"), (metrics.CONNTRACK_LIMIT, "nf_conntrack_max")):
        with suppress(OSError):
            found.append(Reading(metric, float((_NETFILTER / file).read_text()), ("kernel",)))
    return found


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
