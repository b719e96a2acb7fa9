"""Fixtures that every test may use."""

from __future__ import annotations

from switches import switch

__all__ = ["switch"]
