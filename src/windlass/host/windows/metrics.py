"""The metric of routes: Windows has no other place for a mark."""

from __future__ import annotations

METRIC = 4077  # of Windlass' routes, and of no others; it decides only between routes to the same destination
