"""`windlass bench cluster`: its figures. The whole benchmark, on a real cluster, is in tests/kubelets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from switches import requires_ovs
from windlass.bench import cluster, cluster_parts
from windlass.bench.loads import Failure, Tally
from windlass.cli import main
from windlass.lab.control import kubernetes_binaries
from windlass.lab.sandbox.labs import LabError

POD = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"nodeName": "node-2"},
    "status": {
        "podIP": "10.244.1.5",
        "containerStatuses": [{"name": "main", "restartCount": 2, "containerID": "containerd://0123abcd"}],
    },
}


def lost(target: str, began: float) -> Failure:
    return Failure(target, "no answer", began, began + 1, 40000)


def test_the_outage_is_that_of_the_target_with_the_longest_one():
    failures = [lost("node-port", 10.0), lost("cluster-ip", 10.0), lost("cluster-ip", 10.5), lost("node-port", 11.5)]
    assert cluster.outage(Tally(900, failures)) == pytest.approx(1.5 + 1 / cluster.PER_SECOND)
    assert cluster.outage(Tally(900)) == 0.0


def test_a_container_is_found_in_its_pod():
    pod = msgspec.convert(POD, cluster_parts.PodObject)
    found = pod.container("main")
    assert (found.node, found.namespace, found.pod, found.id, found.restarts) == (
        *("node-2", "default", "web", "0123abcd"),
        2,
    )
    with pytest.raises(LabError, match="Pod default/web has no container other"):
        pod.container("other")


@requires_ovs
def test_without_kubernetes_the_error_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(kubernetes_binaries.DIRECTORY_VARIABLE, str(tmp_path))
    result = CliRunner().invoke(main, ["bench", "cluster"])
    assert result.exit_code == 2
    assert "tools/build-kubernetes" in result.output
    assert "--whole" in result.output
