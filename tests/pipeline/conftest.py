"""Hypothesis without deadlines, because a shared machine is slow at times; and a fixture for both families."""

from __future__ import annotations

import pytest
from hypothesis import settings
from node_states import BOTH
from service_cases import Known

settings.register_profile("windlass", deadline=None)
settings.load_profile("windlass")


@pytest.fixture(params=BOTH, ids=str)
def at(request: pytest.FixtureRequest) -> Known:
    """The addresses that the tests of Services use; each test runs for both families."""
    return Known(request.param)
