"""How hypothesis runs: no deadline, since a shared machine is slow at times and that is no error."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("windlass", deadline=None)
settings.load_profile("windlass")
