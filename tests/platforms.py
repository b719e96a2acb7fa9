"""Marks for tests that one operating system cannot run."""

from __future__ import annotations

import sys

import pytest


def not_on_windows(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(sys.platform == "win32", reason=reason)
