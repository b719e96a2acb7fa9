"""The backoff of requests to the API server."""

from __future__ import annotations

import random

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds


def pause_after(failures: int) -> float:
    """Exponential with jitter: all agents of a cluster lose their server at the same moment."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 20))
    return longest * random.uniform(0.5, 1.0) if failures else random.uniform(0.0, FIRST_PAUSE)  # noqa: S311
