"""`windlass bench sync`: install a Program of 100,000 flows in a switch, then change one flow of it.

The floor is `ovs-ofctl` loading the same flows and groups from text files, with or without `--bundle`, whichever is
quicker.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

from windlass.bench import bridges
from windlass.bench.reports import BenchReport, Figure, figure, percentiles, this_machine
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.progress import Say
from windlass.model.families import Family
from windlass.openflow.actions import Ct, Nat, Set, ToGroup
from windlass.openflow.conditions import destination, destination_port
from windlass.openflow.fields import CT_STATE, TCP, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.program import Owner, OwnerKind, Part, Program
from windlass.switch.programs import InstalledProgram

SERVICES = 10_000
PORTS = 10  # per Service, one flow each
ENDPOINTS = 10  # per Service, one bucket each
ROUNDS = 7
CHANGES = 1000

_TABLE, _NEXT_TABLE, _PRIORITY, _ZONE = 40, 50, 200, 65520
_NEW = CT_STATE(0x21, 0x21)  # +new+trk
_VIRTUAL, _ENDPOINT = IPv4Address("10.96.0.0"), IPv4Address("10.128.0.0")


async def run(say: Say = print) -> BenchReport:
    """Takes about a minute."""
    say(f"making {SERVICES} Services with {PORTS} ports and {ENDPOINTS} endpoints each")
    program = {_owner(number): _service(number) for number in range(SERVICES)}
    with labs.opened() as lab:
        floor = bridges.ofctl_floor(program, lab.folder)
        async with bridges.empty_bridge(lab) as socket:
            figures = [
                await _cold_sync(say, socket, program, floor),
                *await _restart(say, socket, program),
                *await _changes(say, socket, program),
            ]
    return BenchReport("sync", this_machine(), tuple(figures))


async def _cold_sync(say: Say, socket: Path, program: Program, floor: bridges.OfctlFloor) -> Figure:
    """Windlass and the floor alternate, so that other work on the machine affects both."""
    ours: list[float] = []
    for turn in range(1, ROUNDS + 1):
        theirs = await floor.measure(socket)
        await bridges.empty(socket)
        began = time.perf_counter()
        async with _installed(socket, program):
            ours.append(time.perf_counter() - began)
        say(f"cold sync, round {turn} of {ROUNDS}: {ours[-1]:.2f} s; {theirs}")
    return figure("cold-sync-100k-flows", statistics.median(ours), "s", statistics.median(floor.seconds))


async def _restart(say: Say, socket: Path, program: Program) -> list[Figure]:
    """An agent that starts while the switch already holds the whole Program."""
    seconds: list[float] = []
    sent = 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        async with _installed(socket, program) as installed:
            seconds.append(time.perf_counter() - began)
        sent += installed.counters.changes_sent
    say(f"restart with the same state: {seconds[-1]:.2f} s, {sent} changes sent")
    return [
        figure("restart-same-state", statistics.median(seconds), "s"),
        figure("restart-same-state-changes-sent", sent, "messages"),
    ]


async def _changes(say: Say, socket: Path, program: Program) -> list[Figure]:
    """One flow of one Service, from its new value until the switch confirms it."""
    milliseconds: list[float] = []
    async with _installed(socket, program) as installed:
        for number in range(CHANGES):
            changed = _service(number, mark=1)
            began = time.perf_counter()
            await installed.apply({_owner(number): changed})
            milliseconds.append((time.perf_counter() - began) * 1000)
        sent = installed.counters.changes_sent
    say(f"{CHANGES} changes of one flow, {sent} changes sent")
    return percentiles("changed-flow", milliseconds, "ms")


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
        raise labs.LabError(f"the figures are invalid, because the switch refused flows: {installed.problems[0]}")


# ---- the Program


def _owner(number: int) -> Owner:
    return Owner(OwnerKind.PEER, f"service-{number}")


def _service(number: int, mark: int = 0) -> Part:
    """A Service whose ports all lead to its endpoints. `mark` makes versions differ."""
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
