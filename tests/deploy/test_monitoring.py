"""Alert rules and dashboard of the chart: promtool checks them, and the agent exports the metrics that they use."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from charts import CHART, ROOT, needs_helm, refusal, rendered

from windlass.agent.metrics import METRICS, MetricKind

ALERTS = CHART / "files" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
# Of Prometheus itself, and of every process that it reads.
STANDARD = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}


def _promtool() -> Path:
    command = [str(ROOT / "tools" / "fetch-promtool"), "--where"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


PROMTOOL = _promtool()
needs_promtool = pytest.mark.skipif(
    not PROMTOOL.exists(), reason=f"{PROMTOOL}: not there; tools/fetch-promtool fetches it, once for a machine"
)


def series() -> set[str]:
    """All names that a query may use."""
    names = set(STANDARD)
    for metric in METRICS.values():
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


def queries() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"].replace("label_values", "count")


def names_in(query: str) -> set[str]:
    """What is left of a query without label values, functions, lists of labels and keywords."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", query)
    bare = re.sub(r"\w+\s+by\s*\([^)]*\)|\{[^}]*\}|\b\w+\s*(?=\()", "", bare)
    return set(re.findall(r"[a-zA-Z_]\w*", bare)) - {"or", "and", "node"}


@pytest.mark.parametrize(("what", "query"), list(queries()))
def test_rules_and_dashboard_use_metrics_that_the_agent_exports(what, query):
    assert names_in(query), what
    assert names_in(query) <= series()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_description_and_a_runbook_section(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert f"\n### {rule['alert']}\n" in RUNBOOK


def test_every_panel_has_a_place_of_its_own():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


@needs_promtool
def test_promtool_accepts_the_rules_and_each_fires_when_it_should(tmp_path):
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tests = ROOT / "tests" / "deploy" / "alerts.yaml"
    tried = promtool("test", "rules", str(tests))
    assert tried.returncode == 0, tried.stdout + tried.stderr
    expected = set(re.findall(r'alertname="(\w+)"', tests.read_text()))
    assert {rule["alert"] for rule in RULES} <= expected, "each has to be tried"

    # That it can fail: the same with a rule that never fires.
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text().replace("windlass_ready == 0", "windlass_ready == 2"))
    broken = tmp_path / "test.yaml"
    broken.write_text(re.sub(r"rule_files: .*", "rule_files: [alerts.yaml]", tests.read_text()))
    assert promtool("test", "rules", str(broken)).returncode != 0


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)


# With Helm ---------------------------------------------------------------------------------------------------------


@needs_helm
def test_neither_is_there_unless_asked_for():
    kinds = {kind for kind, _ in rendered()}
    assert "PrometheusRule" not in kinds
    assert ("ConfigMap", "windlass-dashboard") not in rendered()


@needs_helm
def test_the_rules_are_rendered_as_they_are_with_links_to_where_the_runbook_is():
    rule = rendered(
        "prometheusRule.enabled=true",
        "prometheusRule.runbook=https://wiki.example/windlass",
        "prometheusRule.labels.release=prometheus",
    )["PrometheusRule", "windlass"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (group,) = rule["spec"]["groups"]
    assert [one["expr"] for one in group["rules"]] == [one["expr"] for one in RULES]
    assert group["rules"][0]["annotations"]["summary"] == "The agent of Node {{ $labels.node }} does not answer"
    assert group["rules"][0]["annotations"]["runbook_url"] == "https://wiki.example/windlass#windlassagentdown"
    assert "prometheusRule" in refusal("apiServer=https://10.0.0.1:6443", "prometheusRule.runbook=a b")


@needs_helm
def test_the_dashboard_is_a_config_map_that_the_sidecar_finds():
    config_map = rendered("dashboard.enabled=true")["ConfigMap", "windlass-dashboard"]
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config_map["data"]["windlass.json"]) == DASHBOARD
