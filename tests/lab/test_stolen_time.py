"""The CPU time that a hypervisor stole, from the kernel's counters."""

from __future__ import annotations

import pytest

from windlass.lab.probing.stolen_time import StolenTime

COUNTS = """cpu  9 9 9 9 9 9 9 {sum} 0 0
cpu0 4 4 4 4 4 4 4 {first} 0 0
cpu1 5 5 5 5 5 5 5 {second} 0 0
intr 1 2 3
"""


def test_the_core_with_the_most_stolen_time_counts(tmp_path):
    counts = tmp_path / "stat"

    def taken(first: int, second: int) -> None:
        counts.write_text(COUNTS.format(sum=first + second, first=first, second=second))

    taken(100, 200)
    stolen = StolenTime(counts)
    assert stolen.until(1.0) == 0.0
    taken(103, 214)  # hundredths of a second
    assert stolen.until(1.1) == pytest.approx(0.14)
    taken(110, 214)
    assert stolen.until(1.2) == pytest.approx(0.21)
    taken(120, 214)
    assert stolen.until(1.2005) == pytest.approx(0.21), "somebody has just looked"
    assert stolen.until(1.3) == pytest.approx(0.31)


def test_this_machine_reports_stolen_time():
    assert StolenTime().until(1.0) >= 0.0
