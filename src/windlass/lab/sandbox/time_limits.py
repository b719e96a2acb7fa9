"""Time limits of the lab. On a slow (emulated) machine WINDLASS_LAB_TIME_SCALE lengthens them, and the time between
connections of a rate.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("WINDLASS_LAB_TIME_SCALE", "1"))


def seconds(usual: float) -> float:
    return usual * SCALE
