"""`windlass lab` does not print log messages of the agent's parts that it uses, except for warnings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from windlass.cli.lab import lab


@pytest.fixture
def unchanged_logs() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("unchanged_logs")
def test_only_warnings_of_the_agents_parts_are_printed_and_not_into_the_results(capfd):
    lab.callback()  # what runs before each of its commands
    log = structlog.get_logger("windlass.cluster.kubernetes.feeds")
    log.debug("watch starts again", resource="adminnetworkpolicies")
    log.info("progress")
    log.warning("a warning")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "a warning" in printed.err
    assert "watch starts" not in printed.err
    assert "progress" not in printed.err
