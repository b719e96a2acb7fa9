"""The priorities of flows: each is the first of a band, whose numbers above it are for exceptions to it."""

from __future__ import annotations

from windlass.pipeline.declarations import DECLARED

TOP = DECLARED.priority(220, "top", "guards that no other flow may bypass")
HIGH = DECLARED.priority(210, "high", "exceptions to the normal flows")
NORMAL = DECLARED.priority(200, "normal", "the cases for which the table is there")
LOW = DECLARED.priority(190, "low", "wider cases, such as a whole PodCIDR")
PREFIX = DECLARED.prefix_priority(300, "prefix", "the longest prefix of an address decides")
DEFAULT = DECLARED.priority(100, "default", "all other IP packets of a family or of a kind of port")
