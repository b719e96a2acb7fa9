"""What a benchmark says: figures, with their floor where there is one; as JSON and as a table. It measures nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.table import Table

from windlass.lab.network import ovs
from windlass.lab.sandbox.processes import program


class Machine(Struct, frozen=True):
    cpu: str
    cores: int
    kernel: str
    python: str
    ovs: str
    datapath: str


class Figure(Struct, frozen=True):
    """`floor` is what the quickest other way takes for the same, in the same run; `ratio` is value / floor."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None


class Report(Struct, frozen=True):
    benchmark: str
    machine: Machine
    figures: tuple[Figure, ...]


def figure(name: str, value: float, unit: str, floor: float | None = None) -> Figure:
    ratio = None if floor is None else round(value / floor, 3)
    return Figure(name, round(value, 4), unit, None if floor is None else round(floor, 4), ratio)


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        python=platform.python_version(),
        ovs=_version_of_ovs(),
        datapath=ovs.datapath_type(),
    )


def to_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_table(report: Report) -> Table:
    machine = report.machine
    table = Table(
        title=f"windlass bench {report.benchmark}",
        caption=(
            f"{machine.cpu}, {machine.cores} cores; Open vSwitch {machine.ovs} ({machine.datapath}), "
            f"Python {machine.python}, Linux {machine.kernel}"
        ),
    )
    table.add_column("figure", overflow="fold")  # a name that is cut off names nothing
    for column in ("value", "floor", "ratio"):
        table.add_column(column, justify="right")
    for each in report.figures:
        table.add_row(each.name, _amount(each.value, each.unit), _amount(each.floor, each.unit), _amount(each.ratio))
    return table


def _amount(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}".rstrip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version_of_ovs() -> str:
    said = subprocess.run([program("ovs-vswitchd"), "--version"], check=True, capture_output=True, text=True)
    return said.stdout.split()[3]
