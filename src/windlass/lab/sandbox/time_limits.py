"""How long the lab waits, on a machine as fast as most; an emulated one is given more time by the environment."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("WINDLASS_LAB_TIME_SCALE", "1"))


def seconds(usual: float) -> float:
    return usual * SCALE
