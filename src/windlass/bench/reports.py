"""What a benchmark reports: figures, beside their floor where there is one, as JSON and as a table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.table import Table

from windlass.lab.network import ovs
from windlass.lab.sandbox.processes import program


class MachineInfo(Struct, frozen=True):
    cpu: str
    cores: int
    kernel: str
    python: str
    ovs: str
    datapath: str


class Figure(Struct, frozen=True):
    """`floor` is the quickest other way to do the same, measured in the same run; `ratio` is value / floor."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None


class BenchReport(Struct, frozen=True):
    benchmark: str
    machine: MachineInfo
    figures: tuple[Figure, ...]


def figure(name: str, value: float, unit: str, floor: float | None = None) -> Figure:
    ratio = round(value / floor, 3) if floor else None
    return Figure(name, round(value, 4), unit, None if floor is None else round(floor, 4), ratio)


def percentiles(name: str, values: Sequence[float], unit: str, floor: Sequence[float] | None = None) -> list[Figure]:
    """The median and the 99th percentile."""
    return [
        figure(f"{name}-p{n}", _percentile(values, n), unit, None if floor is None else _percentile(floor, n))
        for n in (50, 99)
    ]


def this_machine() -> MachineInfo:
    return MachineInfo(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        python=platform.python_version(),
        ovs=_version_of_ovs(),
        datapath=ovs.datapath_type(),
    )


def to_json(report: BenchReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_table(report: BenchReport) -> Table:
    machine = report.machine
    table = Table(
        title=f"windlass bench {report.benchmark}",
        caption=(
            f"{machine.cpu}, {machine.cores} cores; Open vSwitch {machine.ovs} ({machine.datapath}), "
            f"Python {machine.python}, Linux {machine.kernel}"
        ),
    )
    table.add_column("figure", overflow="fold")  # never cut a name off
    for column in ("value", "floor", "ratio"):
        table.add_column(column, justify="right")
    for each in report.figures:
        table.add_row(each.name, _amount(each.value, each.unit), _amount(each.floor, each.unit), _amount(each.ratio))
    return table


def _percentile(values: Sequence[float], n: int) -> float:
    return statistics.quantiles(values, n=100)[n - 1]


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
    version = subprocess.run([program("ovs-vswitchd"), "--version"], check=True, capture_output=True, text=True)
    return version.stdout.split()[3]
