"""The rendered manifests in the repository are what the chart says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from charts import ROOT, needs_helm

from windlass.nodes.config import parse

TOOL = ROOT / "tools" / "render-manifests"
MODES = {"windlass.yaml": "encap", "windlass-no-encap.yaml": "noEncap"}


@needs_helm
def test_they_are_up_to_date():
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", MODES)
def test_the_placeholder_is_explained_in_the_header(name):
    text = (ROOT / "deploy" / "manifests" / name).read_text()
    objects = list(yaml.safe_load_all(text))
    config = next(one for one in objects if one and one["kind"] == "ConfigMap")["data"]["windlass.yaml"]
    parsed = parse(config.encode(), name)
    assert parsed.traffic_mode.value == MODES[name]
    assert ".invalid:" in parsed.api_server
    assert "BEFORE YOU APPLY IT" in text
    assert f"s|{parsed.api_server}|" in text, "the command above does not fill in what is there"
    assert [one["metadata"]["name"] for one in objects if one and one["kind"] == "Namespace"] == ["windlass"]
