"""A limit on the packets that the agent accepts from the switch. A packet beyond it costs next to nothing."""

from __future__ import annotations

import time

PACKETS_PER_SECOND = 500  # enough for well-behaved clients of Services without endpoints, and little work


class PacketLimit:
    """A token bucket that holds the tokens of one second."""

    def __init__(self, per_second: float) -> None:
        self.refused = 0  # packets beyond the limit
        self._per_second = per_second
        self._left = per_second
        self._at = time.monotonic()

    def admits(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < 1:
            self.refused += 1
            return False
        self._left -= 1
        return True
