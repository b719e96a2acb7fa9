"""Whole scenarios on Nodes that are plain Linux routers: the lab without Windlass."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from labnet import PlainFabric, needs_root, netlink

from windlass.host.linux import namespaces
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.runner import results, runs
from windlass.lab.runner.probes import ProbeRunner, batches
from windlass.lab.sandbox import labs
from windlass.lab.scenarios import segments

pytestmark = needs_root

CLUSTER = """
{apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
 data: {windlass.yaml: "trafficMode: noEncap"}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.1.0/24, "fd01:1::/64"]},
 status: {addresses: [{type: InternalIP, address: 10.0.0.11}, {type: InternalIP, address: "fd00::11"},
                      {type: ExternalIP, address: 10.9.0.11}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.1.2.0/24, "fd01:2::/64"]},
 status: {addresses: [{type: InternalIP, address: 10.0.2.12}, {type: InternalIP, address: "fd00:2::12"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{ports: [
 {name: http, containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: n2, containers: [{ports: [
 {name: http, containerPort: 80}, {containerPort: 99, protocol: SCTP}]}]},
 status: {podIPs: [{ip: 10.1.2.77}, {ip: "fd01:2::77"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: h}, spec: {nodeName: n2, hostNetwork: true,
 containers: [{ports: [{containerPort: 22}, {containerPort: 22, protocol: UDP}]}]}}
---
{kind: ExternalHost, metadata: {name: out}, spec: {addresses: [10.5.0.5, "fd05::5"], ports: [{port: 443}]}}
---
{kind: ExternalHost, metadata: {name: far}, spec: {addresses: [10.6.0.6, "fd06::6"], mtu: 1280}}
---
"""


def probe(name, source, to, more=""):
    spec = f"from: {{{source}}}, to: {{{to}}}, connections: 2{more}"
    return f"{{kind: Probe, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"


PROBES = "".join(
    [
        probe(
            "pod-to-pod",
            "pod: default/a",
            "pod: default/b, port: http",
            ", expect: {backends: [default/b], clientAddress: Preserved}",
        ),
        probe("pod-to-pod-v6", "pod: default/a", "pod: default/b, port: http, family: IPv6", ", bytes: 100000"),
        probe("sctp", "pod: default/a", "pod: default/b, port: 99", ", protocol: SCTP"),
        probe("ping", "externalHost: out", "pod: default/b", ", protocol: ICMP, expect: {backends: [default/b]}"),
        probe(
            "node-to-pod", "node: n1", "pod: default/a, port: dns", ", protocol: UDP, expect: {clientAddress: Gateway}"
        ),
        probe(
            "pod-to-outside",
            "pod: default/a",
            "address: 10.5.0.5, port: 443",
            ", expect: {backends: [externalHost/out]}",
        ),
        probe("to-host-network", "externalHost: out", "pod: default/h, port: 22", ", expect: {backends: [default/h]}"),
        probe("udp-of-host-network", "pod: default/a", "address: 10.0.2.12, port: 22", ", protocol: UDP"),
        probe(
            "second-nic", "externalHost: out", "address: 10.9.0.11", ", protocol: ICMP, expect: {backends: [node/n1]}"
        ),
        probe(
            "spoofed",
            "pod: default/a",
            "pod: default/b, port: http",
            ", sourceAddress: 10.1.1.200, expect: {backends: [default/b]}",
        ),
        probe("by-a-narrow-link", "externalHost: far", "pod: default/b, port: http", ", bytes: 100000"),
        probe(
            "by-a-narrow-link-v6", "externalHost: far", "pod: default/b, port: http, family: IPv6", ", bytes: 100000"
        ),
        probe("closed", "pod: default/a", "pod: default/b, port: 81", ", expect: {outcome: Refused}"),
        probe("wrong", "pod: default/a", "pod: default/b, port: http", ", expect: {backends: [default/a]}"),
        probe(
            "held", "pod: default/a", "pod: default/b, port: http", ", hold: true, expect: {maxGapMilliseconds: 1500}"
        ),
        probe("rated", "pod: default/a", "pod: default/b, port: http", ", rate: 20"),
    ]
)
CHANGES = """
{kind: Delete, metadata: {name: d}, spec: {kind: Pod, name: default/a}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {nodeName: n1, containers: [{ports: [{containerPort: 80}]}]}}
---
{kind: Action, metadata: {name: r}, spec: {restartAgent: n1}}
---
""" + probe("to-the-new-one", "pod: default/b", "pod: default/c, port: 80")


@pytest.fixture
def fabrics():
    """The labs of a test; each must have ended and left nothing behind."""
    made = []
    yield made
    assert made
    assert all(fabric.ended for fabric in made)
    assert [(fabric.lab.namespaces, fabric.lab.folder.exists()) for fabric in made] == [([], False)] * len(made)


@pytest.fixture
def run(fabrics):
    """Runs a scenario in a lab of its own."""

    def plain(lab):
        fabrics.append(PlainFabric(lab))
        return fabrics[-1]

    def one(scenario, say=lambda _: None):
        return runs.run_scenario(scenario, plain, say)

    return one


async def test_a_scenario_runs_and_everything_is_removed(read, run):
    told = []
    result = await run(read(CLUSTER + PROBES), told.append)
    assert result.error == ""
    verdicts = {verdict.probe: verdict.reasons for verdict in result.verdicts}
    assert {name: reasons for name, reasons in verdicts.items() if reasons} == {
        "wrong": ("no answer from default/a", "unexpected answer from default/b")
    }
    assert len(verdicts) == 16
    assert list(verdicts)[-2:] == ["held", "rated"]
    assert told[0].startswith("  test: 1.yaml is ready after")


async def test_a_declared_difference_holds_where_the_addressed_node_runs_windows(read, fabrics):
    def fabric_of(lab):
        fabrics.append(PlainFabric(lab, windows={"n2"}))
        return fabrics[-1]

    service = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {type: NodePort, clusterIP: 10.96.0.1, "
    service += "ports: [{port: 80, nodePort: 30080}]}}\n---\n"
    differs = ", onWindowsHost: {why: nothing listens, expect: {outcome: Refused}}"
    probes = [
        probe(node, "externalHost: out", f"nodePort: default/s, port: 80, node: {node}", differs)
        for node in ("n1", "n2")
    ]
    result = await runs.run_scenario(read(CLUSTER + service + "".join(probes)), fabric_of, lambda _: None)
    found = {verdict.probe: (verdict.reasons, verdict.difference) for verdict in result.verdicts}
    assert found == {"n1": (("expected Connected, saw Refused",), ""), "n2": ((), "nothing listens")}
    assert results.summary([result]) == "1 passed (1 with a declared difference of the host), 1 failed"
    assert [probe.get("difference") for probe in json.loads(results.to_json([result]))["scenarios"][0]["probes"]] == [
        None,
        "nothing listens",
    ]


async def test_later_steps_change_the_cluster_and_act_on_it(read, run, fabrics):
    result = await run(read(CLUSTER, CHANGES))
    assert result.error == ""
    assert [(verdict.probe, verdict.reasons) for verdict in result.verdicts] == [("to-the-new-one", ())]
    assert fabrics[0].actions == ["restartAgent n1"]


class ListeningCheck(ManifestFolder):
    """Records, whenever objects are published, which hostNetwork Pods have an address and whether each one answers."""

    def __init__(self, lab):
        super().__init__(lab)
        self._lab = lab
        self.answers = {}

    async def publish(self, world, addresses):
        for key in addresses:
            pod = world.pods[key]
            if pod.spec.host_network:
                node_ip = str(addresses[key][0])
                with namespaces.entered(namespaces.path_of(self._lab.namespace("node", pod.spec.node_name))):
                    client = socket.socket()
                with client:
                    refused = client.connect_ex((node_ip, pod.ports[0].container_port))
                self.answers.setdefault(key, []).append(not refused)
        await super().publish(world, addresses)


class CheckedFabric(PlainFabric):
    publisher = None  # a ListeningCheck; PlainFabric makes another one whenever it is asked


async def test_a_host_network_pod_becomes_an_endpoint_when_it_answers(read):
    """Otherwise connections to its Services would be refused, without a fault of the product."""
    goes = "{kind: Delete, metadata: {name: d}, spec: {kind: Pod, name: default/a}}\n---\n"
    comes = CLUSTER.split("---\n")[5].replace("name: h", "name: i").replace("containerPort: 22", "containerPort: 23")
    scenario = read(CLUSTER, goes + comes)
    states = [desired for _, desired in scenario.states()]
    with labs.opened() as lab:
        fabric = CheckedFabric(lab)
        fabric.publisher = published = ListeningCheck(lab)
        cluster = RunningCluster(lab, fabric, segments.machines(states[-1]))
        try:
            await cluster.start()
            for desired in states:
                await cluster.reach(desired, ())
        finally:
            await cluster.end()
    assert published.answers.keys() == {"default/h", "default/i"}
    assert all(all(answers) for answers in published.answers.values())


IP_MTU, IPV6_MTU = 14, 24  # of Linux; the socket module does not have them


async def test_a_router_sends_icmp_errors_for_packets_longer_than_the_mtu(read):
    scenario = read(CLUSTER)
    ((_, desired),) = scenario.states()
    with labs.opened() as lab:
        cluster = RunningCluster(lab, PlainFabric(lab), segments.machines(desired))
        try:
            await cluster.start()
            await cluster.reach(desired, ())
            assert await learned_mtu(lab, socket.AF_INET, "10.6.0.6", socket.IPPROTO_IP, IP_MTU) == 1280
            assert await learned_mtu(lab, socket.AF_INET6, "fd06::6", socket.IPPROTO_IPV6, IPV6_MTU) == 1280
        finally:
            await cluster.end()


async def learned_mtu(lab, family, address, level, option):
    """The path MTU that a Pod knows for this address after a datagram was too long."""
    with namespaces.entered(namespaces.path_of(lab.namespace("pod", "default/b"))):
        client = socket.socket(family, socket.SOCK_DGRAM)
    with client:
        client.setblocking(False)
        client.connect((address, 9))
        client.setsockopt(level, {socket.IPPROTO_IP: 11, socket.IPPROTO_IPV6: 25}[level], 1)  # receives ICMP errors
        client.send(bytes(1400))
        with pytest.raises(OSError, match="Message too long"):
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 30)
        return client.getsockopt(level, option)


POD_ON_N1 = """
{apiVersion: v1, kind: Pod, metadata: {name: late}, spec: {nodeName: n1, containers: [{ports: [{containerPort: 80}]}]}}
---
"""
STOP, START = (
    f"{{kind: Action, metadata: {{name: x}}, spec: {{{verb}: n1}}}}\n---\n" for verb in ("stopAgent", "startAgent")
)


async def test_a_pod_waits_for_an_agent_that_is_started_in_its_step(read, run):
    """Like a kubelet, retry until the CNI plugin succeeds."""
    asked = probe("late", "pod: default/b", "pod: default/late, port: 80")
    deleted = "{kind: Delete, metadata: {name: d}, spec: {kind: Pod, name: default/a}}\n---\n"
    result = await run(read(CLUSTER, STOP, deleted, START + POD_ON_N1 + asked))
    assert (result.error, [verdict.reasons for verdict in result.verdicts]) == ("", [()])
    result = await run(read(CLUSTER, STOP, POD_ON_N1))
    assert result.error.startswith("Pod default/late cannot start: no agent runs on Node n1")


async def test_an_error_is_in_the_result_and_everything_is_removed(read, run):
    api = "{kind: Action, metadata: {name: r}, spec: {stopAPIServer: true}}"
    result = await run(read(CLUSTER, api))
    assert result.error == "stopAPIServer: this lab has no API server"


async def test_two_host_network_pods_cannot_have_one_port(read, run):
    twin = CLUSTER.split("---\n")[5].replace("name: h", "name: i")
    result = await run(read(CLUSTER + twin))
    assert "cannot answer on TCP port 22: Address already in use" in result.error


async def test_cancelling_a_run_leaves_nothing(read, run):
    standing = asyncio.Event()
    running = asyncio.ensure_future(run(read(CLUSTER + PROBES), lambda _: standing.set()))
    async with asyncio.timeout(20):
        await standing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_two_labs_at_once_are_isolated(read, run):
    scenario = read(CLUSTER + PROBES)
    outcomes = await asyncio.gather(run(scenario), run(scenario))
    assert [[v.probe for v in outcome.verdicts if not v.passed] for outcome in outcomes] == [["wrong"], ["wrong"]]


SERVICE = """
{apiVersion: v1, kind: Service, metadata: {name: lb}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]},
 status: {loadBalancer: {ingress: [{ip: 10.1.1.99}]}}}
---
"""


async def test_the_underlay_routes_a_load_balancers_address_to_one_node_at_a_time(read):
    """From outside, the Node where the packet enters decides: n2 has the address, n1 does not."""
    asked = probe(
        "by-n1", "externalHost: out", "loadBalancer: default/lb, port: 80, node: n1", ", expect: {outcome: Timeout}"
    )
    asked += probe(
        "by-n2",
        "externalHost: out",
        "loadBalancer: default/lb, port: 80, node: n2",
        ", expect: {backends: [default/x]}",
    )
    holder = """
{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeName: n2, hostNetwork: true,
 containers: [{ports: [{containerPort: 80}]}]}}
---
"""
    scenario = read(CLUSTER + SERVICE + holder + asked)
    ((step, desired),) = scenario.states()
    with labs.opened() as lab:
        cluster = RunningCluster(lab, PlainFabric(lab), segments.machines(desired))
        try:
            await cluster.start()
            await cluster.reach(desired, ())
            await asyncio.to_thread(give_address, lab.namespace("node", "n2"), "10.1.1.99")
            runner = ProbeRunner(cluster)
            assert len(batches(runner._resolve(probe, step.name) for probe in step.probes)) == 2
            assert [verdict.reasons for verdict in await runner.send(step)] == [(), ()]
        finally:
            await cluster.end()


def give_address(namespace, address):
    with netlink(namespace) as ip:
        ip.addr("add", index=ip.link_lookup(ifname="lo")[0], address=address, prefixlen=32)
