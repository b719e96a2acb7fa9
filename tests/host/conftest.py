"""Fixtures of the host's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# A failing assert there shows its values, too.
pytest.register_assert_rewrite("host_contract", "uplink_contract", "host_machines", "service_machines")

from host_machines import LinuxMachine, linux_machine  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from windlass.host.linux.hosts import LinuxHost


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LinuxMachine]:
    with linux_machine(tmp_path) as made:
        yield made


@pytest.fixture
async def host(machine: LinuxMachine) -> AsyncIterator[LinuxHost]:
    opened = machine.open_host()
    yield opened
    await opened.close()
