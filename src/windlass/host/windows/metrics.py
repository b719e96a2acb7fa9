"""The metric that marks routes of Windlass: Windows has no other field for a mark."""

from __future__ import annotations

METRIC = 4077  # no other program's routes have it; it decides only between routes to the same destination
