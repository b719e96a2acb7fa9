"""How hypothesis runs: no deadline, for a shared machine is slow at times and that is no error. And both families."""

from __future__ import annotations

import pytest
from hypothesis import settings
from node_states import BOTH
from service_cases import Known

settings.register_profile("windlass", deadline=None)
settings.load_profile("windlass")


@pytest.fixture(params=BOTH, ids=str)
def at(request: pytest.FixtureRequest) -> Known:
    """The addresses of one family that the tests of Services speak of; a test is of both families."""
    return Known(request.param)
