"""How long to wait before the API server is tried again. Not responsible for what is tried."""

from __future__ import annotations

import random

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds


def pause_after(failures: int) -> float:
    """Longer each time, and never for all agents of a cluster the same: they lose their server at the same moment."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 20))
    return longest * random.uniform(0.5, 1.0) if failures else random.uniform(0.0, FIRST_PAUSE)  # noqa: S311
