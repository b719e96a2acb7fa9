"""A program that writes the time to its output at regular intervals, independent of the agent's event loop.

python metronomes.py COUNT SECONDS
"""

from __future__ import annotations

import os
import struct
import sys
import time

_TICK = struct.Struct("d")
_MOST = 512  # that are read at once


def command(count: int, gap: float) -> list[str]:
    """The command to start with the writing end of a pipe as its output."""
    return [sys.executable, __file__, str(count), str(gap)]


def read(ticks: int) -> list[float]:
    """The ticks that have arrived by this pipe, by the clock of time.perf_counter, which all processes share."""
    return [when for (when,) in _TICK.iter_unpack(os.read(ticks, _MOST * _TICK.size))]


def main(count: int, gap: float) -> None:
    began = time.perf_counter()
    for number in range(1, count + 1):
        time.sleep(max(0.0, began + number * gap - time.perf_counter()))
        sys.stdout.buffer.write(_TICK.pack(time.perf_counter()))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
