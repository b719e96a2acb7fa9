"""Verdicts: which observations pass, why the others fail, and how both are reported."""

from __future__ import annotations

import io
import json
from ipaddress import ip_address

import pytest
from msgspec import convert
from rich.console import Console

from windlass.lab.probing.verdicts import Attempt, Observation, judge
from windlass.lab.runner import results
from windlass.lab.runner.results import ScenarioResult
from windlass.lab.scenarios.directives import Probe
from windlass.lab.scenarios.objects import ProbeOutcome

WEB = Attempt(ProbeOutcome.CONNECTED, "default/web-0", "10.1.0.1", "10.1.0.5")
OTHER = Attempt(ProbeOutcome.CONNECTED, "default/web-1", "10.1.0.1", "10.1.0.5")
OWN = Attempt(ProbeOutcome.CONNECTED, "default/web-0", "10.1.0.5", "10.1.0.5")
TIMEOUT = Attempt(ProbeOutcome.TIMEOUT)
REFUSED = Attempt(ProbeOutcome.REFUSED)


def verdict(expect, observation, *, seen_as=None, **spec):
    raw = {"from": {"node": "n"}, "to": {"address": "1.1.1.1", "port": 1}, "expect": expect, **spec}
    probe = convert({"metadata": {"name": "p"}, "spec": raw}, Probe)
    return judge(probe, "1.yaml", observation, ip_address(seen_as) if seen_as else None)


def reasons(expect, *attempts, seen_as=None, **spec):
    return list(verdict(expect, Observation(attempts), seen_as=seen_as, **spec).reasons)


@pytest.mark.parametrize(
    ("expect", "attempts", "expected"),
    [
        ({}, [WEB, OTHER], []),
        ({}, [WEB, TIMEOUT, TIMEOUT], ["expected Connected, saw Connected 1 of 3, Timeout 2 of 3"]),
        ({"outcome": "Timeout"}, [TIMEOUT, TIMEOUT], []),
        ({"outcome": "Timeout"}, [REFUSED], ["expected Timeout, saw Refused"]),
        ({"outcome": "Refused"}, [REFUSED, WEB], ["expected Refused, saw Connected 1 of 2, Refused 1 of 2"]),
        ({"backends": ["default/web-0", "default/web-1"]}, [WEB, OTHER], []),
        ({"backends": ["default/web-0", "default/web-1"]}, [WEB, WEB], ["no answer from default/web-1"]),
        ({"backends": ["default/web-0"]}, [WEB, OTHER], ["unexpected answer from default/web-1"]),
        ({"backends": []}, [WEB], ["unexpected answer from default/web-0"]),
        ({"sticky": True}, [WEB, WEB], []),
        ({"sticky": True}, [WEB, OTHER], ["not sticky: default/web-0, default/web-1 answered"]),
        ({}, [Attempt(ProbeOutcome.CONNECTED, fault="others came back")], ["others came back"]),
    ],
)
def test_outcomes_and_backends(expect, attempts, expected):
    assert reasons(expect, *attempts) == expected


def test_client_addresses():
    assert reasons({"clientAddress": "Preserved"}, OWN) == []
    assert reasons({"clientAddress": "Preserved"}, WEB) == [
        "the backend saw the client as 10.1.0.1, expected 10.1.0.5 (Preserved)"
    ]
    assert reasons({"clientAddress": "Gateway"}, WEB, seen_as="10.1.0.1") == []
    assert reasons({"clientAddress": "9.9.9.9"}, WEB, seen_as="9.9.9.9") == [
        "the backend saw the client as 10.1.0.1, expected 9.9.9.9"
    ]
    assert reasons({"clientAddress": "Preserved"}, Attempt(ProbeOutcome.CONNECTED)) == [
        "the backend did not report which client address it saw"
    ]


def test_held_connections():
    limit = {"maxGapMilliseconds": 200}
    assert verdict(limit, Observation((WEB,), max_gap=0.19), hold=True).passed
    assert verdict(limit, Observation((WEB,), max_gap=0.21), hold=True).reasons == (
        "silent for 210 ms; at most 200 ms expected",
    )
    assert verdict({}, Observation((WEB,), max_gap=9, broken="reset"), hold=True).reasons == (
        "the held connection broke: reset",
    )


def test_rates():
    lossy = Observation((WEB, TIMEOUT, REFUSED), failures=2)
    assert verdict({"failures": 2}, lossy, rate=10).passed
    assert verdict({}, lossy, rate=10).reasons == ("2 of 3 connections failed (1 Refused, 1 Timeout); at most 0 may",)


@pytest.fixture
def outcome():
    good = verdict({}, Observation((WEB, WEB, OTHER), max_gap=0.0421), hold=True)
    bad = verdict({"outcome": "Refused"}, Observation((TIMEOUT,)))
    return ScenarioResult("clusterip", "ovs", 6.123, (good, bad))


def test_json_is_as_the_format_fixes_it(outcome):
    assert json.loads(results.to_json([outcome])) == {
        "passed": 1,
        "failed": 1,
        "scenarios": [
            {
                "name": "clusterip",
                "dataplane": "ovs",
                "seconds": 6.1,
                "probes": [
                    {
                        "name": "p",
                        "step": "1.yaml",
                        "passed": True,
                        "outcome": "Connected",
                        "backends": {"default/web-0": 2, "default/web-1": 1},
                        "clientAddresses": ["10.1.0.1"],
                        "maxGapMilliseconds": 42,
                        "failures": 0,
                        "reason": "",
                    },
                    {
                        "name": "p",
                        "step": "1.yaml",
                        "passed": False,
                        "outcome": "Timeout",
                        "backends": {},
                        "clientAddresses": [],
                        "maxGapMilliseconds": None,
                        "failures": 0,
                        "reason": "expected Refused, saw Timeout",
                    },
                ],
            }
        ],
    }


def test_the_table_says_pass_or_fail_and_why_without_colour_in_a_file(outcome):
    file = io.StringIO()
    Console(file=file, width=160).print(results.table([outcome]))
    lines = file.getvalue().splitlines()
    assert [cell.strip() for cell in lines[1].split("  ") if cell] == [
        "clusterip", "p", "Connected", "default/web-0 x2, default/web-1 x1", "10.1.0.1", "pass, longest gap 42 ms",
    ]  # fmt: skip
    assert "FAIL: expected Refused, saw Timeout" in lines[2]
    assert "\x1b" not in file.getvalue()


def test_failures_are_repeated_at_the_end(outcome):
    broken = ScenarioResult("b", "", 0, error="it could not be read")
    assert [line.plain for line in results.failed([outcome, broken])] == [
        "clusterip, 1.yaml, p: expected Refused, saw Timeout",
        "b: error: it could not be read",
    ]


def test_exit_status(outcome):
    good = ScenarioResult("g", "ovs", 1, outcome.verdicts[:1])
    broken = ScenarioResult("b", "", 0, error="it could not be read")
    assert results.status([good]) == 0
    assert results.status([good, outcome]) == 1
    assert results.status([outcome, broken]) == 2
    assert results.summary([outcome, broken]) == "1 passed, 1 failed, 1 scenario could not run"
    assert json.loads(results.to_json([broken]))["scenarios"][0]["error"] == "it could not be read"
