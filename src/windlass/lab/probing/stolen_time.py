"""How long the hypervisor took cores from this machine (steal time in /proc/stat).

A connection is silent during that time, which is not a fault of the switch.
"""

from __future__ import annotations

import os
from pathlib import Path

COUNTS = Path("/proc/stat")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_STOLEN = 8  # the column of "cpu0 4705 356 584 3699 23 23 0 0 0"
_RESOLUTION = 0.01  # seconds: the kernel counts no finer


class StolenTime:
    def __init__(self, counts: Path = COUNTS) -> None:
        self.seconds = 0.0  # so far: in each interval between two reads, the time of the core that lost most
        self._counts = counts
        self._read_at = 0.0
        self._stolen = self._read()

    def until(self, now: float) -> float:
        """`seconds` up to now. Reads the counters only if the last read is older than their resolution."""
        if now - self._read_at >= _RESOLUTION:
            before, self._stolen = self._stolen, self._read()
            self._read_at = now
            self.seconds += (
                max(after - then for after, then in zip(self._stolen, before, strict=True)) / _TICKS_A_SECOND
            )
        return self.seconds

    def _read(self) -> list[int]:
        lines = (line.split() for line in self._counts.read_text().splitlines())
        return [int(words[_STOLEN]) for words in lines if words[0].startswith("cpu") and words[0] != "cpu"]
