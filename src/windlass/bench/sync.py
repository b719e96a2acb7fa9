"""`windlass bench sync`: a Program of 100,000 flows into a switch, and one flow of it changed.

The floor is `ovs-ofctl` loading the same flows and groups from text files: the tool that people would use instead.
It can do so with and without `--bundle`; the quicker of the two is the floor.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

import structlog

from windlass.bench import bridges
from windlass.bench.reports import Figure, Report, figure, this_machine
from windlass.lab.sandbox import labs
from windlass.model.families import Family
from windlass.openflow.actions import Ct, Nat, Set, ToGroup
from windlass.openflow.fields import CT_STATE, TCP, destination, destination_port, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.program import Kind, Owner, Part, Program
from windlass.switch.programs import InstalledProgram

SERVICES = 10_000
PORTS = 10  # of a Service: one flow each
ENDPOINTS = 10  # of a Service: one bucket each
ROUNDS = 7
CHANGES = 1000

_TABLE, _NEXT_TABLE, _PRIORITY, _ZONE = 40, 50, 200, 65520
_NEW = CT_STATE(0x21, 0x21)  # +new+trk
_VIRTUAL, _ENDPOINT = IPv4Address("10.96.0.0"), IPv4Address("10.128.0.0")


def run(say: Callable[[str], None] = print) -> Report:
    """Takes about a minute. `say` hears of the progress."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    say(f"making {SERVICES} Services with {PORTS} ports and {ENDPOINTS} endpoints each")
    program = {_owner(number): _service(number) for number in range(SERVICES)}
    with labs.opened() as lab:
        floor = bridges.floor(program, lab.folder)
        async with bridges.empty_bridge(lab) as socket:
            figures = [
                await _cold_sync(say, socket, program, floor),
                *await _restart(say, socket, program),
                *await _changes(say, socket, program),
            ]
    return Report("sync", this_machine(), tuple(figures))


async def _cold_sync(say: Callable[[str], None], socket: Path, program: Program, floor: bridges.Floor) -> Figure:
    """Ours and the floor take turns, so that what disturbs the machine disturbs both."""
    ours: list[float] = []
    for turn in range(1, ROUNDS + 1):
        theirs = await floor.measure(socket)
        await bridges.empty(socket)
        began = time.perf_counter()
        async with _installed(socket, program):
            ours.append(time.perf_counter() - began)
        say(f"cold sync, round {turn} of {ROUNDS}: {ours[-1]:.2f} s; {theirs}")
    return figure("cold-sync-100k-flows", statistics.median(ours), "s", statistics.median(floor.seconds))


async def _restart(say: Callable[[str], None], socket: Path, program: Program) -> list[Figure]:
    """An agent that starts anew while the switch holds all of it."""
    seconds: list[float] = []
    sent = 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        async with _installed(socket, program) as installed:
            seconds.append(time.perf_counter() - began)
        sent += installed.counters.changes_sent
    say(f"restart with the same state: {seconds[-1]:.2f} s, {sent} messages that change something")
    return [
        figure("restart-same-state", statistics.median(seconds), "s"),
        figure("restart-same-state-changes-sent", sent, "messages"),
    ]


async def _changes(say: Callable[[str], None], socket: Path, program: Program) -> list[Figure]:
    """One of the flows of one Service, from its new value to the switch's word that packets meet it."""
    milliseconds: list[float] = []
    async with _installed(socket, program) as installed:
        for number in range(CHANGES):
            changed = _service(number, mark=1)
            began = time.perf_counter()
            await installed.apply({_owner(number): changed})
            milliseconds.append((time.perf_counter() - began) * 1000)
        sent = installed.counters.changes_sent
    percentiles = statistics.quantiles(milliseconds, n=100)
    say(f"{CHANGES} changes of one flow, {sent} messages that change something")
    return [
        figure("changed-flow-p50", percentiles[49], "ms"),
        figure("changed-flow-p99", percentiles[98], "ms"),
    ]


@asynccontextmanager
async def _installed(socket: Path, program: Program) -> AsyncIterator[InstalledProgram]:
    """The Program in the switch."""
    installed = InstalledProgram(str(socket), program)
    keeper = asyncio.create_task(installed.keep())
    try:
        await installed.synced()
        yield installed
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
    if installed.problems:
        raise labs.LabError(f"the figures are worthless, for the switch refused flows: {installed.problems[0]}")


# ---- the Program


def _owner(number: int) -> Owner:
    return Owner(Kind.PEER, f"service-{number}")


def _service(number: int, mark: int = 0) -> Part:
    """A Service as kube-proxy would know it: each port leads to the endpoints. `mark` tells versions apart."""
    address, group = _VIRTUAL + number, number + 1
    ports = [
        Flow(
            _TABLE,
            _PRIORITY,
            match(_NEW, destination(address), destination_port(Family.IPV4, TCP, port)),
            (Set(reg(4)[0:16](mark if port == 1 else 0)), ToGroup(group)),
            "a port of a Service",
        )
        for port in range(1, PORTS + 1)
    ]
    endpoints = [
        Bucket(
            endpoint,
            (
                Ct(
                    _ZONE,
                    _NEXT_TABLE,
                    commit=True,
                    nat=Nat(to=_ENDPOINT + number * ENDPOINTS + endpoint, ports=(80, 80)),
                ),
            ),
        )
        for endpoint in range(ENDPOINTS)
    ]
    return Part(tuple(ports), (Group(group, tuple(endpoints), "the endpoints of a Service"),))
