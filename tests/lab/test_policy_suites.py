"""The reports of the suites about policies: which results count as passed."""

from __future__ import annotations

from pathlib import Path

from windlass.lab.kubelets.conformance import FAILED, PASSED, SKIPPED
from windlass.lab.kubelets.policy_suites import read_cyclonus, read_network_policy_api

LOG = """
=== RUN   TestConformance/CNPAdminTierIntegration
    conformance.go:1: --- PASS: TestConformance/not/one (0.00s) of the results
--- FAIL: TestConformance (62.10s)
    --- PASS: TestConformance/CNPAdminTierIntegration (20.10s)
        --- PASS: TestConformance/CNPAdminTierIntegration/Should_Deny_traffic (10.05s)
        --- SKIP: TestConformance/CNPAdminTierIntegration/Should_use_SCTP (0.00s)
    --- FAIL: TestConformance/CNPAdminTierGress (42.00s)
        --- FAIL: TestConformance/CNPAdminTierGress/Should_allow (42.00s)
FAIL
"""


def test_subtests_are_the_results_of_network_policy_api():
    found = read_network_policy_api(LOG)
    assert [(one.name, one.verdict, one.seconds) for one in found] == [
        ("CNPAdminTierIntegration/Should_Deny_traffic", PASSED, 10.05),
        ("CNPAdminTierIntegration/Should_use_SCTP", SKIPPED, 0.0),
        ("CNPAdminTierGress/Should_allow", FAILED, 42.0),
    ]


def test_a_failure_before_the_first_subtest_is_a_result():
    assert [one.verdict for one in read_network_policy_api("--- FAIL: TestConformance (300.01s)\n")] == [FAILED]
    before = "--- FAIL: TestConformance (9.00s)\n    --- FAIL: TestConformance/CNPAdminTierGress (9.00s)\n"
    assert [(one.name, one.verdict) for one in read_network_policy_api(before)] == [("CNPAdminTierGress", FAILED)]


def test_cases_of_cyclonus_with_a_failure_have_failed(tmp_path: Path):
    report = tmp_path / "cyclonus.xml"
    assert read_cyclonus(report, "pod-ip") == [], "it is written at the end"
    report.write_text(
        '<testsuite name="cyclonus" tests="0" failures="1"><testcase name="deny all"></testcase>'
        '<testcase name="deny all"><failure message="" type="">wrong</failure></testcase></testsuite>'
    )
    found = read_cyclonus(report, "pod-ip")
    assert [(one.name, one.verdict, one.message) for one in found] == [
        ("pod-ip 1: deny all", PASSED, ""),
        ("pod-ip 2: deny all", FAILED, "wrong"),
    ]
