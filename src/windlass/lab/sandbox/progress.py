"""How labs and benchmarks report their progress."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]  # is called with each sentence for a person
