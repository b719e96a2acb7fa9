"""Runs the unmodified tests of Kubernetes on a cluster of the lab, and reads their results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from msgspec import Struct

from windlass.lab.control.kubernetes_binaries import path_of
from windlass.lab.kubelets.clusters import KubeletCluster
from windlass.lab.kubelets.images import emptied

GROUP = "[sig-network]"
PROCESSES = 4  # in parallel: the tests wait most of the time


@dataclass(frozen=True, slots=True)
class Suite:
    focus: str  # regular expressions over the names of tests
    skip: str
    nodes: int = 2
    zones: int = 0
    processes: int = PROCESSES


_SPECIAL = r"\[Serial\]|\[Disruptive\]|\[Slow\]|\[Feature:|\[Alpha\]|\[Beta\]"
SUITES = {
    "conformance": Suite(r"\[sig-network\].*\[Conformance\]", r"\[Serial\]|\[Disruptive\]"),
    # About ten that cover the main features, for every change.
    "some": Suite(
        r"\[sig-network\].*("
        r"should function for intra-pod communication: http|"
        r"should function for node-pod communication: udp|"
        r"should be able to change the type from ExternalName to NodePort|"
        r"should have session affinity work for service with type clusterIP|"
        r"should be able to create a functioning NodePort service|"
        r"should serve multiport endpoints from pods|"
        r"should serve endpoints on same port and different protocols|"
        r"validates that there is no conflict between pods with same hostPort|"
        r"should provide DNS for services|"
        r"should provide DNS for pods for Hostname|"
        r"should proxy through a service and a pod"
        r").*\[Conformance\]",
        r"\[Serial\]|with a custom proxy",
    ),
    # The tests of policies, except three that need SCTP in the kernel; these three; and a sample of the others.
    "network-policy-sctp": Suite(r"SCTPConnectivity.*\[Feature:NetworkPolicy\]", r"\[Disruptive\]", processes=1),
    "network-policy": Suite(r"\[Feature:NetworkPolicy\]", "SCTPConnectivity"),
    "network-policy-some": Suite(
        r"NetworkPolicy between server and client ("
        r"should support a .default-deny-all. policy|"
        r"should enforce policy based on Multiple PodSelectors and NamespaceSelectors|"
        r"should enforce except clause while egress access to server in CIDR block|"
        r"should allow ingress access from updated pod|"
        r"should allow egress access on one named port"
        r").*\[Feature:NetworkPolicy\]",
        "SCTPConnectivity",
    ),
    # All other tests without special requirements.
    "others": Suite(r"\[sig-network\]", rf"{_SPECIAL}|\[Conformance\]", nodes=4, zones=3),
}


class Result(Struct, frozen=True):
    name: str
    verdict: str  # PASSED, FAILED, SKIPPED or NOT_ASKED
    seconds: float = 0.0
    message: str = ""  # why it was skipped, or how it failed


PASSED, FAILED, SKIPPED, NOT_ASKED = "passed", "failed", "skipped", "not asked for"


async def run(cluster: KubeletCluster, suite: Suite, reports: Path) -> list[Result]:
    """Runs the suite on the first Node. The output of the tests goes to `reports`/e2e.log."""
    command = (
        *(str(path_of("ginkgo")), f"--procs={suite.processes}", "--no-color", "--timeout=60m"),
        *(f"--focus={suite.focus}", f"--skip={suite.skip}", str(path_of("e2e.test")), "--"),
        *(f"--kubeconfig={cluster.kubeconfig}", f"--kubectl-path={path_of('kubectl')}", "--provider=skeleton"),
        *(f"--report-dir={reports}", "--disable-log-dump=true", f"--num-nodes={cluster.shape.nodes}"),
    )
    await run_on_first_node(cluster, reports, "e2e.log", *command)
    return read(reports)


async def run_on_first_node(cluster: KubeletCluster, reports: Path, log_name: str, *command: str) -> None:
    """Runs a program of tests in the folder `reports`, emptied before. Its exit status is ignored."""
    log_file = emptied(reports) / log_name
    machine = cluster.machines[cluster.shape.names[0]]
    environment = ("env", f"HOME={reports}", f"KUBECONFIG={cluster.kubeconfig}")
    command = tuple(machine.command(*environment, *command))
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=reports, stdout=log, stderr=log)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def read(reports: Path) -> list[Result]:
    """The results of all tests of the network group, also of those that were not selected."""
    found: dict[str, Result] = {}
    for file in sorted(reports.glob("junit*.xml")):
        for case in ET.parse(file).iter("testcase"):  # noqa: S314 - our own child wrote it
            result = _result(case)
            if result.name.startswith(GROUP):
                found[result.name] = result
    return sorted(found.values(), key=lambda result: result.name)


def _result(case: ET.Element) -> Result:
    name, spent = case.get("name", "").removeprefix("[It] "), float(case.get("time", "0"))
    failure = next((one for kind in ("failure", "error") if (one := case.find(kind)) is not None), None)
    if failure is not None:
        return Result(name, FAILED, spent, (failure.get("message") or failure.text or "").strip())
    skipped = case.find("skipped")
    if skipped is None:
        return Result(name, PASSED, spent)
    message = (skipped.get("message") or "").removeprefix("skipped").removeprefix(" - ").strip()
    return Result(name, SKIPPED if message else NOT_ASKED, 0.0, message)
