"""Namespaces that no manifest declares."""

from __future__ import annotations

from pathlib import Path

import yaml

from windlass.cluster.manifests import Manifests


def test_the_namespaces_of_pods_exist_also_if_no_manifest_declares_them(tmp_path: Path):
    pods = [
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": name}} for name in ("shop", "db")
    ]
    labelled = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop", "labels": {"team": "a"}}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([*pods, labelled]))
    manifests = Manifests(tmp_path)
    found = manifests.read().namespaces
    assert {name: one.metadata.labels for name, one in found.items()} == {"shop": {"team": "a"}, "db": None}
    assert manifests.read().namespaces["db"] is found["db"]
