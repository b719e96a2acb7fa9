"""`windlass bench watch` with few Services: it gives all figures. Times are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from switches import requires_ovs
from windlass.bench import watch
from windlass.cli import main
from windlass.lab.control import kubernetes_binaries

ABSENT = kubernetes_binaries.missing("etcd", "kube-apiserver")


@requires_ovs
@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
def test_a_small_run_gives_every_figure_beside_its_floor(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"SIZES": (3, 6), "COUNT": 5, "SETTLING": 0.0}.items():
        monkeypatch.setattr(watch, name, value)
    said: list[str] = []
    report = watch.run(said.append)
    assert [one.name for one in report.figures] == ["watch-3-p50", "watch-3-p99", "watch-6-p50", "watch-6-p99"]
    assert all(one.value > 0 and one.floor and one.unit == "ms" for one in report.figures)
    assert any("an agent with 6 Services" in sentence for sentence in said)


@requires_ovs
def test_without_kubernetes_the_error_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(kubernetes_binaries.DIRECTORY_VARIABLE, str(tmp_path))
    result = CliRunner().invoke(main, ["bench", "watch"])
    assert result.exit_code == 2
    assert "etcd, kube-apiserver not built; tools/build-kubernetes does that" in result.output
