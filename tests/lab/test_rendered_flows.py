"""`windlass render` of a cluster is what the agents of that cluster program, flow by flow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from labnet import needs_root, running_cluster

from windlass.cli.render import facts_of, state_of
from windlass.cni.attachments import pod_mac
from windlass.host.linux import namespaces
from windlass.lab.network import ovs
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.nodes import AttachedPod
from windlass.openflow.ofctl import flow_text, group_text
from windlass.program import program

if TYPE_CHECKING:
    from windlass.lab.orchestration.clusters import RunningCluster
    from windlass.nodes.states import NodeFacts

CLUSTER = """
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ConfigMap
    metadata: {name: windlass-config, namespace: kube-system}
    data:
      windlass.yaml: |
        trafficMode: MODE
        datapathType: DATAPATH
        nodePortAddresses: [10.176.0.0/16, "fd00:10:176::/48"]
        serviceCIDRs: [10.96.0.0/16]
  - {apiVersion: v1, kind: Node, metadata: {name: node-1,
     annotations: {lab.windlass.dev/translated-addresses: 203.0.113.1}},
     spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]}, status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"},
       {type: ExternalIP, address: 10.176.27.11}, {type: ExternalIP, address: 203.0.113.1}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: node-2},
     spec: {podCIDRs: [172.16.2.0/24, "fd00:172:16:2::/64"]}, status: {addresses: [
       {type: InternalIP, address: 10.176.25.12}, {type: InternalIP, address: "fd00:10:176:25::12"}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: node-3},
     spec: {podCIDRs: [172.16.3.0/24, "fd00:172:16:3::/64"]}, status: {addresses: [
       {type: InternalIP, address: 10.176.26.13}, {type: InternalIP, address: "fd00:10:176:26::13"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: web-1, labels: {app: web}}, spec: {nodeName: node-1,
     containers: [{ports: [{containerPort: 80, hostPort: 8080}]}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: web-2, labels: {app: web}}, spec: {nodeName: node-2,
     containers: [{ports: [{containerPort: 80}]}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: web-3, labels: {app: web}},
     spec: {nodeName: node-3, hostNetwork: true, containers: [{ports: [{containerPort: 80}]}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, selector: {app: web},
     clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilies: [IPv4, IPv6],
     ports: [{name: http, port: 80, nodePort: 30080}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: local}, spec: {type: LoadBalancer, selector: {app: web},
     externalTrafficPolicy: Local, sessionAffinity: ClientIP, clusterIP: 10.96.0.11,
     ports: [{port: 80, nodePort: 30081}]},
     status: {loadBalancer: {ingress: [{ip: 198.51.100.7}]}}}
  - {apiVersion: v1, kind: Service, metadata: {name: empty},
     spec: {clusterIP: 10.97.0.12, ports: [{port: 53, protocol: UDP}]}}
  - {apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {team: web}}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web}, spec: {podSelector: {},
     ingress: [{from: [{namespaceSelector: {matchLabels: {team: web}}, podSelector: {matchLabels: {app: web}}},
                       {ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}], ports: [{port: 80, endPort: 99}]}]}}
  - {apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: nodes},
     spec: {tier: Baseline, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {}}]}]}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: garbled},
     spec: {podSelector: {matchLabels: {app: web}}, egress: none}}
  - {kind: Probe, metadata: {name: any},
     spec: {from: {pod: default/web-1}, to: {pod: default/web-2, port: 80}}}
"""


@needs_root
@pytest.mark.parametrize("mode", ["encap", "noEncap", "hybrid"])
async def test_render_equals_the_flows_of_the_agents(mode: str) -> None:
    text = CLUSTER.replace("MODE", mode).replace("DATAPATH", ovs.datapath_type())
    async with running_cluster(text) as cluster:
        for node in cluster.desired.nodes:
            state = state_of(cluster.desired, node, await facts_on(cluster, node))
            assert ("default/web-1 (host ports)" in state.services) is (node == "node-1")
            assert bool(state.policies.subjects) is (node != "node-3")  # the only Pod is in hostNetwork mode
            rendered = program(state).values()
            flows = {flow_text(flow) for part in rendered for flow in part.flows}
            groups = {group_text(group) for part in rendered for group in part.groups}
            assert flows == {flow["ofctl"] for flow in (await ask(cluster, node, "flows"))["flows"]}
            assert groups == {group["ofctl"] for group in (await ask(cluster, node, "groups"))["groups"]}


async def facts_on(cluster: RunningCluster, node: str) -> NodeFacts:
    """The facts that render assumes, and those that are not in manifests: the NIC's MAC, and the port of each Pod."""
    assumed = facts_of(cluster.desired, node)
    mac = await read_mac(cluster.namespace_of(ProbeSource(node=node)))
    pods = {}
    for key, pod in (await ask(cluster, node, "state"))["pods"].items():
        addresses = tuple(map(ip_address, pod["addresses"]))
        namespace, name = key.split("/")
        pods[pod["containerID"]] = AttachedPod(
            namespace, name, pod["containerID"], pod["interface"], pod["ofport"], pod_mac(addresses), addresses
        )
    return replace(assumed, adapter=replace(assumed.adapter, mac=mac), pods=pods)


async def read_mac(namespace: str) -> str:
    with namespaces.entered(namespaces.path_of(namespace)):
        listing = await asyncio.create_subprocess_exec(
            *["ip", "-br", "link", "show", "eth0"], stdout=asyncio.subprocess.PIPE
        )
    output, _ = await listing.communicate()
    return output.split()[2].decode()


async def ask(cluster: RunningCluster, node: str, what: str) -> dict[str, Any]:
    """The local API of the Node's agent."""
    socket = str(cluster.lab.node_folder(node) / "run" / "agent.sock")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as session,
        session.get(f"http://agent/v1/{what}") as response,
    ):
        return await response.json()
