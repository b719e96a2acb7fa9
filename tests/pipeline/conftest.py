"""A fixture for both families."""

from __future__ import annotations

import pytest
from node_states import BOTH
from service_cases import Known


@pytest.fixture(params=BOTH, ids=str)
def at(request: pytest.FixtureRequest) -> Known:
    """The addresses that the tests of Services use; each test runs for both families."""
    return Known(request.param)
