"""A throw-away Windows host for each test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "host"))  # the contract of all hosts
pytest.register_assert_rewrite("host_contract", "uplink_contract", "windows_machines")

from windows_machines import WindowsMachine, windows_machine  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from windlass.host.windows.hosts import WindowsHost


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[WindowsMachine]:
    with windows_machine(tmp_path) as made:
        yield made


@pytest.fixture
async def host(machine: WindowsMachine) -> AsyncIterator[WindowsHost]:
    opened = machine.open_host()
    yield opened
    await opened.close()
