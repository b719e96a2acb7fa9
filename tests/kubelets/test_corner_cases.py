"""A container runtime's corner cases, and the killing of parts, on a real cluster: kubelets, containerd, Pods.

Some minutes: `make test-corner-cases` runs them, and `make test` does not.
"""

from __future__ import annotations

import asyncio
import json

import findings
import kubelet_marks
import msgspec
import pytest
import pytest_asyncio

from windlass.bench import cluster as bench
from windlass.bench import cluster_parts as parts
from windlass.bench.cluster import FAR, NEAR
from windlass.bench.loaded_runs import LoadedPhase
from windlass.bench.loads import Failure
from windlass.lab.kubelets import clusters
from windlass.lab.kubelets.clusters import NAMESPACE, KubeletCluster, Shape

MANY = 50  # Pods at once
SERVING = ("netexec", "--http-port=8080", "--udp-port=-1")


pytestmark = [
    *kubelet_marks.NEEDS_A_CLUSTER,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),  # the first one brings the cluster up; 50 Pods take their time on two cores
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster():
    async with clusters.running(Shape(nodes=2), print) as standing:
        yield standing


# Under load -----------------------------------------------------------------------------------------------------------


def lost(phase: LoadedPhase) -> list[Failure]:
    assert phase.tally.attempted > 0
    return [*phase.tally.failures, *phase.tally.broken]


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def load(cluster):
    async with bench.loaded(cluster, print) as loaded:
        server = await findings.sandbox_of(cluster, FAR, "web")
        yield loaded
    await findings.until_gone(cluster, FAR, frozenset({server.id}))


class TestUnderLoad:
    async def test_a_rolling_restart_of_the_agents_loses_no_connection(self, load):
        before = {node: await parts.part_on(load.cluster, node, parts.AGENT, "agent") for node in (NEAR, FAR)}
        assert not lost(await load.run.phase("rollout", load.roll_out_agents()))
        for node, agent in before.items():
            assert (await parts.part_on(load.cluster, node, parts.AGENT, "agent")).pod != agent.pod

    async def test_agents_that_are_killed_lose_no_connection(self, load):
        assert not lost(await load.run.phase("agents", load.kill_agents()))

    async def test_an_api_server_that_is_killed_loses_no_connection(self, load):
        assert not lost(await load.run.phase("API server", load.kill_api_server()))

    async def test_containerd_that_is_killed_loses_no_connection(self, load):
        assert not lost(await load.run.phase("containerd", load.kill_containerd()))

    async def test_a_killed_switch_recovers_completely(self, load):
        """What it carried meanwhile is lost. Nothing is afterwards.

        But for clients that come again from a port from which they were not answered (docs/continuity.md): the other
        Node's Open vSwitch, in user space, seems to hold that attempt against the new one.
        """
        before = await findings.holdings(load.cluster, FAR)
        killed = await load.run.phase("ovs-vswitchd", load.kill_switch())
        await load.warm_up()
        after = await findings.holdings(load.cluster, FAR)
        assert (after.addresses, after.ports) == (before.addresses, before.ports)
        unanswered = {(failure.target, failure.port) for failure in lost(killed)}
        later = await load.run.phase("after that", asyncio.sleep(bench.SECONDS_AFTER))
        assert {(failure.target, failure.port) for failure in lost(later)} <= unanswered


# What a runtime asks of a plugin --------------------------------------------------------------------------------------


async def test_a_delete_can_be_repeated_and_needs_no_namespace(cluster):
    before = await findings.holdings(cluster, FAR)
    await parts.make_pod(cluster, "deleted", FAR, SERVING)
    sandbox = await findings.sandbox_of(cluster, FAR, "deleted")
    after = await findings.remove(cluster, FAR, "deleted")
    for netns in (sandbox.netns, "", ""):
        assert not await findings.call_plugin(cluster, FAR, sandbox.environment("DEL", CNI_NETNS=netns))
    assert await findings.holdings(cluster, FAR) == after == before


async def test_a_pod_that_is_attached_can_be_attached_again(cluster):
    """The result is the same, and the network of the Pod is not interrupted."""
    pod = await parts.make_pod(cluster, "again", FAR, SERVING)
    before = await findings.holdings(cluster, FAR)
    sandbox = await findings.sandbox_of(cluster, FAR, "again")
    said = [json.loads(await findings.call_plugin(cluster, FAR, sandbox.environment("ADD"))) for _ in range(2)]
    assert said[0] == said[1]
    assert [ip["address"].partition("/")[0] for ip in said[0]["ips"]] == [pod.status.pod_ip]
    assert await findings.holdings(cluster, FAR) == before
    assert await findings.hears(cluster, "", NEAR, pod.status.pod_ip) == "again"
    await findings.remove(cluster, FAR, "again")


async def test_a_pod_waits_for_an_agent_that_is_away(cluster):
    """Its Events say why, and it comes up by itself when the agent is back."""
    agents = ("-n", NAMESPACE, f"daemonset/{parts.AGENT}")
    agent = await parts.part_on(cluster, FAR, parts.AGENT, "agent")
    await cluster.kubectl("label", f"node/{NEAR}", "corner-cases=agent")
    await cluster.kubectl("patch", *agents, "-p", _selecting('"agent"'))
    try:
        await cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", f"pod/{agent.pod}", "--timeout=60s")
        await cluster.kubectl("apply", "-f", "-", content=_manifests(["waiting"]))
        said = await findings.event_about(cluster, "waiting", "FailedCreatePodSandBox")
        assert "the Windlass agent" in said
        assert "cni.sock" in said
    finally:
        await cluster.kubectl("patch", *agents, "-p", _selecting("null"))
        await cluster.kubectl("label", f"node/{NEAR}", "corner-cases-")
    await cluster.kubectl("wait", "--for=condition=Ready", "pod/waiting", f"--timeout={findings.PATIENCE:.0f}s")
    (pod,) = await parts.pods(cluster, "--field-selector=metadata.name=waiting")
    assert await findings.hears(cluster, "", NEAR, pod.status.pod_ip) == "waiting"
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{parts.AGENT}", "--timeout=120s")
    await findings.remove(cluster, FAR, "waiting")


def _selecting(label: str) -> str:
    return f'{{"spec": {{"template": {{"spec": {{"nodeSelector": {{"corner-cases": {label}}}}}}}}}}}'


def _manifests(names: list[str]) -> str:
    return "\n---\n".join(msgspec.json.encode(parts.pod_manifest(name, FAR, SERVING)).decode() for name in names)


# A Node that reboots, and a Node that has much to do ------------------------------------------------------------------


async def test_a_node_that_reboots_keeps_nothing_of_the_time_before(cluster):
    """Pods come back and talk; of their former sandboxes, and of a Pod that was deleted meanwhile, nothing is left."""
    await asyncio.gather(
        parts.make_pod(cluster, "stays", FAR, SERVING),
        parts.make_pod(cluster, "goes", FAR, SERVING),
        parts.make_pod(cluster, "near", NEAR, SERVING),
    )
    before = await findings.holdings(cluster, FAR)
    await cluster.machines[FAR].off()
    await cluster.kubectl("delete", "pod/goes", "--force", "--grace-period=0")
    await cluster.reboot(FAR)
    await _returned(cluster, "stays")
    after = await findings.until_gone(cluster, FAR, before.containers)
    sandbox = await findings.sandbox_of(cluster, FAR, "stays")
    there = len(await parts.pods(cluster, "-A", f"--field-selector=spec.nodeName={FAR},spec.hostNetwork=false"))
    assert sandbox.id in after.containers
    assert len(after.addresses) == len(after.ports) == len(after.links) == len(after.containers) == there
    (stays,) = await parts.pods(cluster, "--field-selector=metadata.name=stays")
    (near,) = await parts.pods(cluster, "--field-selector=metadata.name=near")
    assert await findings.hears(cluster, "near", NEAR, stays.status.pod_ip) == "stays"
    assert await findings.hears(cluster, "stays", FAR, near.status.pod_ip) == "near"
    await findings.remove(cluster, FAR, "stays")
    await findings.remove(cluster, NEAR, "near")


async def _returned(cluster: KubeletCluster, pod: str) -> None:
    """The API server has the Pod's former state for a while: its restart is what tells that the Node is back."""
    limit = f"--timeout={findings.PATIENCE:.0f}s"
    await cluster.kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", f"pod/{pod}", limit)
    await cluster.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", limit)
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{parts.AGENT}", limit)


async def test_many_pods_at_once(cluster):
    before = await findings.holdings(cluster, FAR)
    names = [f"many-{number}" for number in range(MANY)]
    await cluster.kubectl("apply", "-f", "-", content=_manifests(names))
    limit = f"--timeout={3 * findings.PATIENCE:.0f}s"
    await cluster.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), limit)
    made = await parts.pods(cluster)
    by_address = {pod.status.pod_ip: pod.metadata.name for pod in made if pod.metadata.name in names}
    assert sorted(by_address.values()) == sorted(names)
    heard = await asyncio.gather(*(findings.hears(cluster, "", NEAR, address) for address in by_address))
    assert list(heard) == list(by_address.values())
    during = await findings.holdings(cluster, FAR)
    assert len(during.ports) == len(before.ports) + MANY
    assert during.flows > before.flows

    assert await findings.remove(cluster, FAR, *names) == before
