"""Windlass leaves a real cluster, in an orderly way and in others: its Nodes stay reachable.

Some minutes: `make test-corner-cases` runs it, and `make test` does not.
"""

from __future__ import annotations

import asyncio
import socket

import findings
import kubelet_marks
import pytest
import pytest_asyncio

from windlass.bench import cluster_parts as parts
from windlass.bench.cluster import FAR, NEAR
from windlass.host.linux import namespaces
from windlass.lab.kubelets import clusters
from windlass.lab.kubelets.clusters import NAMESPACE, KubeletCluster, Shape
from windlass.lab.sandbox.labs import LabError

SWITCH, RELEASE = "windlass-switch", "windlass-release"
SERVING = ("netexec", "--http-port=8080", "--udp-port=-1")
KUBELET_PORT = 10250
LIMIT = f"--timeout={findings.PATIENCE:.0f}s"


pytestmark = [
    *kubelet_marks.NEEDS_A_CLUSTER,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster():
    async with clusters.running(Shape(nodes=2), print) as standing:
        yield standing


async def reaches(cluster: KubeletCluster, node: str, other: str) -> bool:
    """Does the kubelet of the other Node answer? It takes a while only if it does not at first."""

    def connect() -> bool:
        with namespaces.entered(namespaces.path_of(cluster.machines[node].namespace)):
            try:
                socket.create_connection((str(cluster.shape.address(other)), KUBELET_PORT), timeout=10).close()
            except OSError:
                return False
        return True

    return await asyncio.to_thread(connect)


async def holder(cluster: KubeletCluster, node: str) -> str:
    """The interface that has the Node's address."""
    shown = await cluster.machines[node].run("ip", "-o", "address", "show", "to", str(cluster.shape.address(node)))
    return " ".join(line.split()[1] for line in shown.splitlines())


async def select(cluster: KubeletCluster, label: str) -> None:
    patch = f'{{"spec": {{"template": {{"spec": {{"nodeSelector": {{"uninstall": {label}}}}}}}}}}}'
    for daemon_set in (SWITCH, parts.AGENT):
        await cluster.kubectl("-n", NAMESPACE, "patch", f"daemonset/{daemon_set}", "-p", patch)


async def test_an_upgrade_of_the_switch_gives_nothing_away(cluster):
    await parts.make_pod(cluster, "web", FAR, SERVING)
    (web,) = await parts.pods(cluster, "--field-selector=metadata.name=web")
    former = await parts.part_on(cluster, FAR, SWITCH, "ovs-vswitchd")
    await cluster.kubectl("-n", NAMESPACE, "delete", f"pod/{former.pod}")
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{parts.AGENT}", LIMIT)
    assert (await parts.part_on(cluster, FAR, SWITCH, "ovs-vswitchd")).pod != former.pod
    await answered(cluster, web.status.pod_ip)
    assert await holder(cluster, FAR) == "br-int"
    assert await reaches(cluster, NEAR, FAR)


async def answered(cluster: KubeletCluster, address: str) -> None:
    """Through the Pod `web`. The agent is ready shortly after its switch; there is no event for it."""
    deadline = asyncio.get_running_loop().time() + findings.PATIENCE
    while True:
        try:
            assert await findings.hears(cluster, "", NEAR, address) == "web"
        except OSError:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.5)
        else:
            return


async def test_a_node_that_loses_its_label_stays_reachable(cluster):
    """Both DaemonSets leave it. When they come back, so does the network of its Pods."""
    leaving = [await parts.part_on(cluster, FAR, SWITCH, "ovs-vswitchd")]
    leaving.append(await parts.part_on(cluster, FAR, parts.AGENT, "agent"))
    await cluster.kubectl("label", f"node/{NEAR}", "uninstall=stays")
    await select(cluster, '"stays"')
    for part in leaving:
        await cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", f"pod/{part.pod}", LIMIT)
    assert await reaches(cluster, NEAR, FAR)
    assert await reaches(cluster, FAR, NEAR)
    assert await holder(cluster, FAR) == "eth0"

    await select(cluster, "null")
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{parts.AGENT}", LIMIT)
    (web,) = await parts.pods(cluster, "--field-selector=metadata.name=web")
    await answered(cluster, web.status.pod_ip)
    assert await holder(cluster, FAR) == "br-int"


async def test_an_uninstallation_leaves_nothing(cluster):
    """By the steps of docs/install.md."""
    await cluster.kubectl("delete", "pod/web")
    await cluster.apply_chart("--set=release=true")
    await cluster.kubectl("-n", NAMESPACE, "delete", f"daemonset/{parts.AGENT}")  # as `helm upgrade` does
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{RELEASE}", LIMIT)
    await cluster.kubectl("delete", "namespace", NAMESPACE, LIMIT)
    for node, other in ((NEAR, FAR), (FAR, NEAR)):
        machine = cluster.machines[node]
        assert await holder(cluster, node) == "eth0"
        assert await reaches(cluster, other, node)
        assert "windlass" not in await machine.run("nft", "list", "tables")  # kubelet has some
        assert "87" not in await machine.run("ip", "rule") + await machine.run("ip", "route", "show", "table", "all")
        for interface in ("br-int", "windlass-gw0", "windlass-tun0"):
            with pytest.raises(LabError, match="does not exist"):
                await machine.run("ip", "link", "show", interface)
        left = await machine.run(
            "sh", "-c", f"find /var/lib/windlass /run/windlass {findings.CONFIGURATION} 2>/dev/null || true"
        )
        assert not [path for path in left.split() if "/switch" not in path and path.count("/") > 3], left
