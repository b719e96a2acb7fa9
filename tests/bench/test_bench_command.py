"""`windlass bench` on a machine that cannot run a benchmark."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from windlass.cli import main
from windlass.cli.bench import BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_without_root_every_benchmark_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(main, ["bench", name])
    assert result.exit_code == 2
    assert "run it with sudo" in result.output
