"""Fixtures that every test may use, and how hypothesis runs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from switches import switch

__all__ = ["switch"]

# A shared machine is slow at times, and that is no error.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")
