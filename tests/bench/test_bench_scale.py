"""`windlass bench scale` with few Pods: it gives all figures. Times are not checked."""

from __future__ import annotations

import asyncio

import pytest

from switches import requires_ovs
from windlass.bench import pod_documents, scale
from windlass.lab.control import kubernetes_binaries

ABSENT = kubernetes_binaries.missing("etcd", "kube-apiserver")


@requires_ovs
@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
def test_a_small_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch):
    small = {"NODES": (3,), "PODS_OF_A_NODE": 40, "CHANGES": 20, "WATCHES": 3, "WRITES": 8, "SERVED_PODS": 4}
    for name, value in small.items():
        monkeypatch.setattr(scale, name, value)
    figures = {figure.name: figure.value for figure in asyncio.run(scale.run(lambda _: None)).figures}
    assert figures.keys() == {
        *("agent-3-nodes-list", "agent-3-nodes-list-cpu", "agent-3-nodes-rss", "agent-3-nodes-cpu-of-a-change"),
        *("server-cpu-of-a-write", "server-cpu-of-a-delivery", "server-bytes-of-a-delivery"),
    }
    assert figures["server-bytes-of-a-delivery"] > pod_documents.SIZE / 2


def test_a_pod_is_as_large_as_an_api_server_sends_it():
    assert abs(len(pod_documents.sent(7, 1)) - pod_documents.SIZE) < 100
