"""`windlass render`: the flows and groups of a Node from manifests alone, without a switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click
import msgspec
from msgspec import structs

from windlass.cli.outputs import FLOW_FORMAT, fail
from windlass.cluster.clusters import Cluster, decode, kind_of, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.nodes import OS_LABEL, NotUsable
from windlass.cluster.objects import APIObject, Malformed
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.cni.attachments import pod_mac
from windlass.host.protocol import Uplink
from windlass.lab.control import manifests
from windlass.lab.scenarios import objects as scenario_objects
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses, pod_addresses
from windlass.lab.scenarios.segments import machine_of_node
from windlass.model.families import Family, IPAddress
from windlass.model.nodes import AttachedPod, NodeState, OperatingSystem
from windlass.nodes.config import ConfigError, parse
from windlass.nodes.states import NodeFacts, node_state
from windlass.openflow.flows import Flow
from windlass.openflow.ofctl import flow_text, group_text, meter_text
from windlass.openflow.wire.flows import encode
from windlass.pipeline.datapaths import DATAPATHS
from windlass.pipeline.symbols import flow_symbols, group_symbols, meter_symbols
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.program import Program, program
from windlass.switch.pod_ports import POD_NUMBERS

# Manifests do not contain these values, and the set of flows does not depend on them.
UPLINK_MAC = "02:00:00:00:00:01"
UPLINK_MTU = 1500


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--node", required=True, help="The Node whose flows to print.")
@FLOW_FORMAT
@click.option("--why", is_flag=True, help="With symbolic: the reason above each flow.")
def render(path: Path, node: str, form: str, why: bool) -> None:
    """Print the flows that a Node would get from the manifests in PATH: a file, a directory, or a scenario.

    They are the flows that the agent installs, with these assumptions about what manifests do not contain: a Pod
    without an address gets the next free one, ports are numbered in the order of the Pods, the Node's subnet is a /24
    (IPv6: /64), and addresses in its Node object other than the Node IPs are on a second NIC.

    Warnings on standard error name what is ignored, and parts of policies that cannot be used. The exit status stays 0.

    \b
    Examples:
      windlass render scenarios/tour --node node-1 --why
      windlass render scenarios/tour --node node-1 --format ofctl
    """
    try:
        scenario = scenario_files.find_one(path).read()
        rendered = program(state_of(scenario.last_state, node))
    except (scenario_files.ScenarioError, NotUsable, ConfigError) as error:
        fail("render", error)
    for sentence in dict.fromkeys((*scenario.warnings, *_problems(scenario.last_state))):
        click.echo(f"windlass render: {sentence}", err=True)
    match form:
        case "symbolic":
            lines = _symbolic(rendered, why=why)
        case "ofctl":
            lines = _ofctl(rendered)
        case _:
            lines = iter([msgspec.json.format(msgspec.json.encode(list(_reports(rendered)))).decode()])
    for line in lines:
        click.echo(line)


def state_of(world: DesiredState, name: str, facts: NodeFacts | None = None) -> NodeState:
    """The state that the agent of this Node computes. Without facts, those that `facts_of` assumes are used."""
    facts = facts or facts_of(world, name)
    config = parse(msgspec.json.encode(world.configuration), "ConfigMap kube-system/windlass-config")
    addresses = {**_pod_addresses(world), **{pod.key: pod.addresses for pod in facts.pods.values()}}
    state = node_state(structs.replace(config, node_name=name), _cluster(world, addresses), facts)
    return replace(state, services=dict(sorted(state.services.items())))  # in an order that a reader can follow


def facts_of(world: DesiredState, name: str) -> NodeFacts:
    """Assumptions about what manifests do not contain: NICs are as in the lab, Pods are attached in order."""
    if name not in world.nodes:
        raise NotUsable(f"there is no Node {name}; known: {', '.join(sorted(world.nodes)) or 'none'}")
    uplink, *others = machine_of_node(world.nodes[name]).nics
    held = [address.ip for nic in (uplink, *others) for address in nic.addresses]
    adapter = Uplink(uplink.name, index=0, mac=UPLINK_MAC, mtu=UPLINK_MTU, addresses=tuple(uplink.addresses))
    return NodeFacts(adapter, held, {pod.container_id: pod for pod in _pods(world, name, _pod_addresses(world))})


def _cluster(world: DesiredState, addresses: PodAddresses) -> Cluster:
    """The cluster as the agent reads it, with EndpointSlices for Services that have none in the manifests."""
    found = [_decoded(one)[0] for one in manifests.render(world, pod_addresses(world, addresses))]
    return with_objects(
        Cluster(),
        {
            member: {one.key: one for one in found if isinstance(one, kind.struct)}
            for member, kind in kinds_of(Cluster).items()
        },
    )


def _decoded(manifest: Mapping[str, object]) -> tuple[APIObject | None, str]:
    """The object; if it cannot be decoded, what the agent uses instead (a policy that denies all), and a sentence."""
    try:
        return decode(manifest), ""
    except Malformed as error:
        kind = kind_of(manifest)
        instead, effect = kind.instead_of(manifest, None) if kind else (None, "it is left out")
        return instead, f"{error}; {effect}"


def _problems(world: DesiredState) -> Iterator[str]:
    """A sentence for each object that cannot be decoded, and for each part of a policy that cannot be used."""
    for one in world.objects.values():
        found, problem = _decoded(one.raw)
        problems = [problem] if problem else []
        match found:
            case NetworkPolicy() if not problem:
                _, problems = read_network_policy(found)
            case ClusterNetworkPolicy() if not problem:
                _, problems = read_cluster_network_policy(found)
        yield from (f"{one.kind} {one.key}, {sentence}" for sentence in problems)


def _pods(world: DesiredState, node: str, addresses: PodAddresses) -> Iterator[AttachedPod]:
    """The Pods of this Node, on ports in the order in which they are written."""
    pods = [pod for key, pod in world.pods.items() if key in addresses and pod.spec.node_name == node]
    for number, pod in zip(POD_NUMBERS, pods, strict=False):
        yield AttachedPod(
            namespace=pod.metadata.namespace or "default",
            name=pod.metadata.name,
            container_id=pod.key,
            interface=pod.metadata.name[:15],
            ofport=number,
            mac=pod_mac(addresses[pod.key]),
            addresses=addresses[pod.key],
        )


def _pod_addresses(world: DesiredState) -> PodAddresses:
    """The addresses that Pods request; each other Pod gets the next free ones of its Node."""
    pods = [pod for pod in world.pods.values() if pod.spec.node_name in world.nodes and not pod.spec.host_network]
    taken = {address for pod in pods for address in pod.fixed_addresses}
    return {pod.key: pod.fixed_addresses or tuple(_next_free(world.nodes[pod.spec.node_name], taken)) for pod in pods}


def _next_free(node: scenario_objects.LabNode, taken: set[IPAddress]) -> Iterator[IPAddress]:
    is_windows = node.metadata.labels.get(OS_LABEL) == OperatingSystem.WINDOWS.value
    usable = DATAPATHS[OperatingSystem.WINDOWS if is_windows else OperatingSystem.LINUX].families
    for family in (family for family in Family if family in node.addresses and family in node.pod_cidrs):
        if family in usable:
            address = node.pod_cidrs[family].network_address + 2  # the first one is the gateway's
            while address in taken:
                address += 1
            taken.add(address)
            yield address


def _symbolic(rendered: Program, *, why: bool) -> Iterator[str]:
    for flow in _in_order(rendered):
        if why:
            yield f"# {flow.why}"
        yield flow_symbols(flow)
    for owned in rendered.values():
        for group in owned.groups:
            yield from group_symbols(group)
        yield from map(meter_symbols, owned.meters)


def _ofctl(rendered: Program) -> Iterator[str]:
    for owned in rendered.values():
        yield from map(meter_text, owned.meters)
        yield from map(group_text, owned.groups)
    yield from map(flow_text, _in_order(rendered))


def _in_order(rendered: Program) -> list[Flow]:
    """All flows in the order in which a packet passes them."""
    flows = [flow for owned in rendered.values() for flow in owned.flows]
    return sorted(flows, key=lambda flow: (flow.table, -flow.priority, flow_symbols(flow)))


def _reports(rendered: Program) -> Iterator[dict[str, object]]:
    for owner, owned in rendered.items():
        for flow in owned.flows:
            yield {
                "owner": str(owner),
                "why": flow.why,
                "cookie": f"{encode(flow).cookie:#018x}",
                "symbolic": flow_symbols(flow),
                "ofctl": flow_text(flow),
            }
