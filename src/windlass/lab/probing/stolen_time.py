"""For how long this machine stood still: what its hypervisor gave of its cores to others. Linux keeps count of that.

A connection is silent meanwhile, and no switch could help it.
"""

from __future__ import annotations

import os
from pathlib import Path

COUNTS = Path("/proc/stat")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_STOLEN = 8  # the column of "cpu0 4705 356 584 3699 23 23 0 0 0"
_OLD_ENOUGH = 0.01  # seconds: the kernel counts no finer


class StolenTime:
    def __init__(self, counts: Path = COUNTS) -> None:
        self.seconds = 0.0  # so far; of several cores that of the one that was taken for longest, look by look
        self._counts = counts
        self._looked_at = 0.0
        self._stolen = self._read()

    def look(self, now: float) -> float:
        """`seconds`, up to now; cheap if somebody has just looked."""
        if now - self._looked_at >= _OLD_ENOUGH:
            before, self._stolen = self._stolen, self._read()
            self._looked_at = now
            self.seconds += (
                max(after - then for after, then in zip(self._stolen, before, strict=True)) / _TICKS_A_SECOND
            )
        return self.seconds

    def _read(self) -> list[int]:
        lines = (line.split() for line in self._counts.read_text().splitlines())
        return [int(words[_STOLEN]) for words in lines if words[0].startswith("cpu") and words[0] != "cpu"]
