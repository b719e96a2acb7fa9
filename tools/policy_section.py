"""The section about policies of docs/conformance.md, from the results of tools/test-policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.lab.control.kubernetes_binaries import VERSION
from windlass.lab.kubelets import policy_programs
from windlass.lab.kubelets.conformance import FAILED, NOT_ASKED, PASSED, Result
from windlass.lab.kubelets.delays import DELAY

KUBERNETES, CYCLONUS, NETWORK_POLICY_API = "kubernetes", "cyclonus", "network-policy-api"
HEADING, HEADING_OF_SCTP, NEXT_HEADING = "## Policies", "## SCTP", "## All "
SLOWER = 5  # times, the clock of the emulated machine: programs are about as much slower there


class PolicyRun(Struct, frozen=True):
    suite: str
    mode: str
    seconds: float
    results: list[Result]
    only_sctp: bool = False


class Suite(Struct, frozen=True):
    title: str
    tests: int  # that must pass on a kernel without SCTP
    with_sctp: str  # what is left out there
    tests_with_sctp: int = 0  # of `--suite sctp`


ALL = {
    KUBERNETES: Suite(f"Kubernetes {VERSION}, [Feature:NetworkPolicy]", 45, "3 tests", 3),
    NETWORK_POLICY_API: Suite(
        policy_programs.NETWORK_POLICY_API + ", all features",
        56,
        "36 subtests, and the servers for SCTP in its manifests",
        36,
    ),
    CYCLONUS: Suite(policy_programs.CYCLONUS + ", all cases", 230, "the probes by SCTP of each case"),
}


def write(reports: Path, page: Path) -> None:
    """Replaces the sections of which there are runs; shares of the suites are not told."""
    files = sorted(file for file in reports.glob("policy-*/run.json") if "-some-" not in file.parent.name)
    runs = [msgspec.json.decode(file.read_bytes(), type=PolicyRun) for file in files]
    for section, its_runs in (
        (_lines, [run for run in runs if not run.only_sctp]),
        (_lines_of_sctp, [run for run in runs if run.only_sctp]),
    ):
        if its_runs:
            page.write_text(replaced(page.read_text(), "\n".join(section(its_runs)) + "\n"))


def replaced(page: str, section: str) -> str:
    """The page with this section instead of the one with the same heading, or after the others about policies."""
    before, _, after = page.partition(NEXT_HEADING)
    start, _, former = before.partition(section.partition("\n")[0] + "\n")
    _, more, kept = former.partition("\n## ")
    return f"{start}{section}\n{'## ' if more else ''}{kept}{NEXT_HEADING}{after}"


def taken(page: str) -> str:
    """The sections of a page, to be put into the next one; empty: it has none."""
    section = page.partition(HEADING)[2].partition(NEXT_HEADING)[0]
    return HEADING + section.rstrip() + "\n" if section else ""


def _lines(runs: list[PolicyRun]) -> Iterator[str]:
    yield HEADING
    yield ""
    yield (
        "Three suites about policies on clusters of the same kind, two Nodes. Made by `tools/test-policy --record`; "
        "`make test-policy` repeats it. The kernel of the machine has no SCTP, so what needs it is left out. cyclonus "
        "probes Service addresses, with `--ignore-loopback`: it has no exception for a Pod's connections to itself. "
        "Its cases that create or relabel Pods probe Pod addresses: it forgets the Service address of such a Pod, and "
        "would connect the client to itself."
    )
    yield ""
    yield "| suite | traffic mode | passed | failed | minutes | without SCTP it leaves out |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for run in runs:
        counts, suite = Counter(result.verdict for result in run.results), ALL[run.suite]
        passed = f"{counts[PASSED]} of {max(suite.tests, counts[PASSED] + counts[FAILED])}"
        minutes = f"{run.seconds / 60:.0f}"
        yield f"| {suite.title} | {run.mode} | {passed} | {counts[FAILED]} | {minutes} | {suite.with_sctp} |"
    for name in ALL.keys() - {run.suite for run in runs}:
        yield f"| {ALL[name].title} | | not recorded yet: {ALL[name].tests} cases, hours on a busy machine | | | |"
    yield from _details(runs)


def _lines_of_sctp(runs: list[PolicyRun]) -> Iterator[str]:
    yield HEADING_OF_SCTP
    yield ""
    yield (
        "What needs SCTP in the kernel, on a cluster of the same kind in the [emulated machine](kernel-datapath.md): "
        "Debian's kernel, Open vSwitch with the kernel datapath, containerd and two kubelets. Its clock is "
        f"{SLOWER} times slower than the clock of the machine that emulates it, because the tests have fixed time "
        "limits; the minutes are of its clock. Made by `tools/test-policy --suite sctp --record`. The server of "
        "agnhost closes an SCTP connection as soon as it has answered. In a machine this slow, that is often before "
        "the client has sent anything; the client then fails with `broken pipe`, although the connection was made. "
        f"So packets to Pods are delayed by {1000 * DELAY:.0f} ms: the server ends a connection one round trip after "
        "its answer, and the client has that time."
    )
    yield ""
    yield "| suite | traffic mode | passed | failed | minutes |"
    yield "| --- | --- | --- | --- | --- |"
    for run in runs:
        counts, suite = Counter(result.verdict for result in run.results), ALL[run.suite]
        passed = f"{counts[PASSED]} of {max(suite.tests_with_sctp, counts[PASSED] + counts[FAILED])}"
        yield f"| {suite.title} | {run.mode} | {passed} | {counts[FAILED]} | {run.seconds / 60:.0f} |"
    for name, suite in ALL.items():
        if suite.tests_with_sctp and name not in {run.suite for run in runs}:
            yield f"| {suite.title} | | not recorded yet: {suite.tests_with_sctp} subtests | | |"
    yield from _details(runs)


def _details(runs: list[PolicyRun]) -> Iterator[str]:
    for run in runs:
        yield ""
        yield f"<details><summary>{ALL[run.suite].title}, {run.mode}</summary>"
        yield ""
        yield "| test | result |"
        yield "| --- | --- |"
        for result in run.results:
            if result.verdict != NOT_ASKED:
                yield f"| {_plain(result.name)} | {result.verdict} |"
        yield ""
        yield "</details>"


def _plain(name: str) -> str:
    """In one cell of a table, as text."""
    return name.replace("|", "/").replace("\n", " ").replace("<", "&lt;").replace("[sig-network] Netpol ", "")
