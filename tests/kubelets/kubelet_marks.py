"""What every test on a whole cluster needs."""

from __future__ import annotations

import os
import sys

import pytest

from windlass.lab.control.kubernetes_binaries import PROGRAMS, missing


def _why_not() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, to make machines"
    return missing(*PROGRAMS)


NEEDS_A_CLUSTER = (pytest.mark.kubelets, pytest.mark.skipif(bool(_why_not()), reason=_why_not()))
