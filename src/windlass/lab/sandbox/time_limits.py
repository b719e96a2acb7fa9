"""Time limits of the lab. WINDLASS_LAB_TIME_SCALE lengthens them on a slow (emulated) machine."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("WINDLASS_LAB_TIME_SCALE", "1"))


def seconds(usual: float) -> float:
    return usual * SCALE
