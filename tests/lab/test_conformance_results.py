"""The results of Kubernetes' own tests, read from their files."""

from __future__ import annotations

from pathlib import Path

from windlass.lab.kubelets.conformance import FAILED, NOT_ASKED, PASSED, SKIPPED, Result, read

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite">
  <testcase name="[ReportBeforeSuite]" status="passed" time="0.1"></testcase>
  <testcase name="[It] [sig-network] Services should work [Conformance]" status="passed" time="12.5"></testcase>
  <testcase name="[It] [sig-network] Services should fail" status="failed" time="3">
    <failure message="no answer" type="failed">at line 3</failure></testcase>
  <testcase name="[It] [sig-network] DNS needs a cloud" status="skipped" time="0.2">
    <skipped message="skipped - Only supported for providers [gce]"></skipped></testcase>
  <testcase name="[It] [sig-network] NetworkPolicy [Feature:NetworkPolicy]" status="skipped" time="0">
    <skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-node] Pods should run" status="passed" time="1"></testcase>
</testsuite></testsuites>"""


def test_each_test_of_the_network_with_its_verdict(tmp_path: Path):
    (tmp_path / "junit_01.xml").write_text(REPORT)
    assert read(tmp_path) == [
        Result("[sig-network] DNS needs a cloud", SKIPPED, 0.0, "Only supported for providers [gce]"),
        Result("[sig-network] NetworkPolicy [Feature:NetworkPolicy]", NOT_ASKED),
        Result("[sig-network] Services should fail", FAILED, 3.0, "no answer"),
        Result("[sig-network] Services should work [Conformance]", PASSED, 12.5),
    ]


def test_a_missing_report_gives_no_results(tmp_path: Path):
    assert read(tmp_path) == []
