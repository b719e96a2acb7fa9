"""`windlass bench watch` with few Services: it gives all figures. Times are not checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from switches import requires_ovs
from windlass.bench import watch, watch_policies
from windlass.bench.policy_states import Size
from windlass.cli import main
from windlass.lab.control import kubernetes_binaries

ABSENT = kubernetes_binaries.missing("etcd", "kube-apiserver")


@requires_ovs
@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
def test_a_small_run_gives_every_figure_beside_its_floor(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"SIZES": (3, 6), "COUNT": 5, "SETTLING": 0.0}.items():
        monkeypatch.setattr(watch, name, value)
    size = Size(namespaces=100, pods=0, local=2, policies=20, rules=10)
    for name, value in {"PODS": 120, "COUNT": 5, "SETTLING": 0.0, "SIZE": size}.items():
        monkeypatch.setattr(watch_policies, name, value)
    said: list[str] = []
    report = asyncio.run(watch.run(said.append))
    times = {one.name: one for one in report.figures if one.unit == "ms"}
    assert [*times] == [
        *("watch-3-p50", "watch-3-p99", "watch-6-p50", "watch-6-p99"),
        *("policies-watch-120-pods-p50", "policies-watch-120-pods-p99"),
    ]
    assert all(one.value > 0 and one.floor for one in times.values())
    others = {one.name for one in report.figures} - times.keys()
    assert others == {"policies-first-list-120-pods", "policies-rss-120-pods"}
    assert any("an agent with 6 Services" in sentence for sentence in said)


@requires_ovs
def test_without_kubernetes_the_error_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(kubernetes_binaries.DIRECTORY_VARIABLE, str(tmp_path))
    result = CliRunner().invoke(main, ["bench", "watch"])
    assert result.exit_code == 2
    assert "etcd, kube-apiserver not built; tools/build-kubernetes does that" in result.output
