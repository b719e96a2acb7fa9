"""`windlass bench passes` with few Services and peers: it gives all figures. Times are not checked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from switches import requires_ovs
from windlass.bench import passes
from windlass.cli.main import main


@requires_ovs
@pytest.mark.timeout(240)
def test_all_figures_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SERVICES": 20, "PEERS": 5, "ADDS": 2, "CHANGES": 5, "NODES": 2, "SETTLING": 0.0}.items():
        monkeypatch.setattr(passes, name, value)
    result = CliRunner().invoke(main, ["bench", "passes"])
    assert result.exit_code == 0, result.output
    for figure in (
        "cni-add-alone-p99",
        "service-change-alone-p99",
        "cni-add-during-every-flow-pass-p99",
        "service-change-during-compare-pass-p50",
        "node-joins-p50",
        "node-leaves-p99",
    ):
        assert figure in result.output
