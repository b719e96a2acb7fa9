"""Runs the suites about policies that are not Kubernetes' own on a cluster of the lab, and reads their results."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from windlass.lab.kubelets.clusters import NAMESPACE, SECONDS_TO_BE_READY, KubeletCluster
from windlass.lab.kubelets.conformance import FAILED, PASSED, SKIPPED, Result, run_on_first_node
from windlass.lab.kubelets.policy_programs import has_sctp, programs

# Each step of a case probes all connections between 9 Pods: 20 s. These tags select five cases: named ports,
# both directions, and policies that come, change and go.
CYCLONUS_SHARE = ("example", "namespaces-by-default-label", "create-policy")
# Cases that create or relabel Pods. With Service addresses they do not work: cyclonus loses the address of such a Pod's
# Service, and the client then connects to itself. With Pod addresses they do.
_NEW_PODS = ("create-namespace", "create-pod", "set-pod-labels", "upstream-e2e")
# A denied connection waits for the whole timeout, so it is short. A wrong matrix is probed again, up to two times.
_PATIENCE = (
    "--job-timeout-seconds=1",
    "--perturbation-wait-seconds=1",
    "--retries=2",
    "--pod-creation-timeout-seconds=300",
)

# Tests and subtests that need SCTP.
_NEEDS_SCTP = "TestConformance/CNP.*(SCTP|Gress$|InlineCIDR)|TestConformance/CNP.*NodePeers/.*deny"
# Regular expressions over tests. The sample has CNPAdminTierIntegration, which has a policy of each tier.
API_TESTS = {
    "all": "TestConformance$",
    "some": "TestConformance$/^CNP("
    "AdminTier(Integration|PriorityField|EgressNodePeers|EgressNamedPort)|BaselineTierIngressUDP)$",
    "sctp": _NEEDS_SCTP,
}
_VERDICTS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_LINE = re.compile(r"^ *--- (PASS|FAIL|SKIP): (TestConformance\S*) \((\d+\.\d+)s\)$", re.MULTILINE)


async def define_cluster_network_policies(cluster: KubeletCluster) -> None:
    """Call this before agents start: an agent rarely asks again for a kind that the API server did not know."""
    await cluster.kubectl("apply", "--server-side", "-f", str(programs().crd))
    await cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(programs().crd))
    agents = ("-n", NAMESPACE, "rollout")
    await cluster.kubectl(*agents, "restart", "daemonset/windlass-agent")
    await cluster.kubectl(*agents, "status", "daemonset/windlass-agent", f"--timeout={SECONDS_TO_BE_READY:.0f}s")


async def run_cyclonus(cluster: KubeletCluster, tags: tuple[str, ...], reports: Path) -> list[Result]:
    """All cases, or those with one of the tags. Connections of a Pod to itself do not count."""
    by_service = await _run_cyclonus(cluster, reports, "service-ip", tags, () if tags else _NEW_PODS)
    by_pod = [] if tags else await _run_cyclonus(cluster, reports, "pod-ip", _NEW_PODS, ())
    return [*by_service, *by_pod]


async def _run_cyclonus(
    cluster: KubeletCluster, reports: Path, target: str, tags: tuple[str, ...], without: tuple[str, ...]
) -> list[Result]:
    protocols = "TCP,UDP,SCTP" if has_sctp() else "TCP,UDP"
    folder = reports / target
    command = (
        *(str(programs().cyclonus), "generate", f"--include={','.join(tags)}", f"--exclude={','.join(without)}"),
        *(f"--server-protocol={protocols}", f"--destination-type={target}", "--ignore-loopback", *_PATIENCE),
        f"--junit-results-file={folder}/cyclonus.xml",
    )
    await run_on_first_node(cluster, folder, "cyclonus.log", *command)
    return read_cyclonus(folder / "cyclonus.xml", target)


def read_cyclonus(report: Path, target: str) -> list[Result]:
    if not report.exists():  # it is written at the end
        return []
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - our own child wrote it
    return [_case(f"{target} {number}", case) for number, case in enumerate(cases, start=1)]


def _case(number: str, case: ET.Element) -> Result:
    name = f"{number}: {case.get('name', '')}"  # different cases may have the same name
    failure = case.find("failure")
    if failure is None:
        return Result(name, PASSED)
    return Result(name, FAILED, 0.0, (failure.get("message") or failure.text or "no reason given").strip())


async def run_network_policy_api(cluster: KubeletCluster, tests: str, reports: Path) -> list[Result]:
    """The tests that a regular expression names, with all features."""
    command = (
        *(
            str(programs().conformance if has_sctp() else programs().conformance_without_sctp),
            f"-test.run={tests}",
            "-test.v",
            "-test.timeout=60m",
            "-all-features",
        ),
        *(() if has_sctp() else (f"-test.skip={_NEEDS_SCTP}",)),
    )
    await run_on_first_node(cluster, reports, "network-policy-api.log", *command)
    return read_network_policy_api((reports / "network-policy-api.log").read_text(errors="replace"))


def read_network_policy_api(log: str) -> list[Result]:
    """The subtests. A failed test without subtests is a result, too: it failed before its first subtest."""
    found = [(name.split("/"), _VERDICTS[verdict], float(spent)) for verdict, name, spent in _LINE.findall(log)]
    with_parts = {tuple(path[:length]) for path, _, _ in found for length in range(1, len(path))}
    return [
        Result("/".join(path[1:]) or path[0], verdict, spent)
        for path, verdict, spent in found
        if len(path) == 3 or (verdict == FAILED and tuple(path) not in with_parts)
    ]
