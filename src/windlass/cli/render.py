"""`windlass render`: the flows and groups of a Node from manifests alone, without a switch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_interface, ip_network
from pathlib import Path

import click
import msgspec
from msgspec import structs

from windlass.cluster import objects, policies
from windlass.cluster.catalogues import Catalogue
from windlass.cluster.endpoints import ServingNode, zone_of
from windlass.cluster.nodes import Identity, NotUsable, identity, peers
from windlass.cluster.objects import Cluster, EndpointSlice, Node, decode
from windlass.cluster.policies import policy_in
from windlass.cni.attachments import pod_mac
from windlass.lab.control import manifests
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.desired_states import World, pod_addresses
from windlass.model.families import Family, IPAddress
from windlass.model.nodes import AttachedPod, LocalNode, NodeState
from windlass.model.services import Service
from windlass.nodes.config import Config, ConfigError, DatapathType, parse
from windlass.nodes.group_numbers import GroupNumbers
from windlass.openflow.ofctl import flow_text, group_text, meter_text
from windlass.openflow.wire.flows import encode
from windlass.pipeline.datapaths import DATAPATHS
from windlass.pipeline.symbols import flow_symbols, group_symbols, meter_symbols
from windlass.program import Program, program
from windlass.switch.pod_ports import POD_NUMBERS

PREFIXES = {Family.IPV4: 24, Family.IPV6: 64}  # manifests do not tell a Node's subnet; the lab uses these
UPLINK_MAC = "02:00:00:00:00:01"  # nor its NIC's MAC


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--node", required=True, help="The Node whose flows to print.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["symbolic", "ofctl", "json"]),
    default="symbolic",
    show_default=True,
    help="symbolic: names instead of numbers; ofctl: as ovs-ofctl reads it; json: both, with owner and why.",
)
@click.option("--why", is_flag=True, help="With symbolic: the reason above each flow.")
def render(path: Path, node: str, form: str, why: bool) -> None:
    """Print the flows that a Node would get from the manifests in PATH (a file or a folder; a scenario is fine).

    Pods without an address get the next free one, ports are numbered as the agent would; the Node's subnet is taken
    to be a /24 (IPv6: /64).
    """
    try:
        world = world_of(path)
        rendered = program(state_of(world, node))
    except (scenario_files.ScenarioError, NotUsable, ConfigError) as error:
        click.echo(f"windlass render: {error}", err=True)
        sys.exit(2)
    for sentence in policies.summary(filter(None, (policy_in(one.raw) for one in world.objects.values()))):
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


def state_of(world: World, name: str) -> NodeState:
    """The state that the agent of this Node would come to, as far as manifests tell."""
    config = parse(msgspec.json.encode(world.configuration), "ConfigMap kube-system/windlass-config")
    cluster = _cluster(world, {})
    if name not in cluster.nodes:
        raise NotUsable(f"there is no Node {name}; there: {', '.join(sorted(cluster.nodes)) or 'none'}")
    pods = {node: tuple(_pods(world, _local(config, cluster, node))) for node in dict.fromkeys((name, *cluster.nodes))}
    cluster = _cluster(world, {pod.key: pod.addresses for attached in pods.values() for pod in attached})
    local, own = _local(config, cluster, name), identity(cluster.nodes[name])
    known, _ = peers(cluster, own, {})
    attached = {pod.container_id: pod for pod in pods[name]}
    return NodeState(local, known, attached, _services(cluster, own))


def _local(config: Config, cluster: Cluster, name: str) -> LocalNode:
    own = identity(cluster.nodes[name])
    families = DATAPATHS[own.os].families
    return LocalNode(
        name=name,
        mode=config.traffic_mode,
        tunnel=config.tunnel_type,
        os=own.os,
        addresses={f: ip_interface(f"{a}/{PREFIXES[f]}") for f, a in own.addresses.items() if f in families},
        pod_cidrs={family: cidr for family, cidr in own.pod_cidrs.items() if family in families},
        uplink_mac=UPLINK_MAC,
        other_addresses=own.other_addresses,
        node_port_networks=tuple(ip_network(text) for text in config.node_port_addresses),
        userspace=config.datapath_type is DatapathType.NETDEV,
    )


def _cluster(world: World, attached: Mapping[str, tuple[IPAddress, ...]]) -> Cluster:
    """As the agent reads it, with the EndpointSlices of Services that have none."""
    found = [decode(manifest) for manifest in manifests.render(world, pod_addresses(world, attached))]
    return Cluster(
        nodes={one.key: one for one in found if isinstance(one, Node)},
        services={one.key: one for one in found if isinstance(one, objects.Service)},
        slices={one.key: one for one in found if isinstance(one, EndpointSlice)},
    )


def _services(cluster: Cluster, own: Identity) -> dict[str, Service]:
    catalogue, numbers = Catalogue(), GroupNumbers()
    families = tuple(family for family in Family if family in own.addresses and family in own.pod_cidrs)
    catalogue.follow(cluster, ServingNode(own.name, zone_of(cluster.nodes[own.name]), families, own.os, own.pod_cidrs))
    return {
        key: structs.replace(
            service,
            ports=tuple(
                structs.replace(port, group=numbers.of(f"{key} {port.name} {port.protocol} {port.family}"))
                for port in service.ports
            ),
        )
        for key, service in sorted(catalogue.services.items())
    }


def world_of(path: Path) -> World:
    *_, (_, world) = scenario_files.find_one(path).read().worlds()
    return world


def _pods(world: World, node: LocalNode) -> Iterator[AttachedPod]:
    pods = [p for p in world.pods.values() if p.spec.node_name == node.name and not p.spec.host_network]
    taken: set[IPAddress] = {address for pod in pods for address in pod.fixed_addresses}
    for number, pod in zip(POD_NUMBERS, pods, strict=False):
        addresses = pod.fixed_addresses or tuple(_next_free(node, taken))
        yield AttachedPod(
            namespace=pod.metadata.namespace or "default",
            name=pod.metadata.name,
            container_id=pod.key,
            interface=pod.metadata.name[:15],
            ofport=number,
            mac=pod_mac(addresses),
            addresses=addresses,
        )


def _next_free(node: LocalNode, taken: set[IPAddress]) -> Iterator[IPAddress]:
    for family in node.families:
        address = node.gateway(family) + 1
        while address in taken:
            address += 1
        taken.add(address)
        yield address


def _symbolic(rendered: Program, *, why: bool) -> Iterator[str]:
    flows = [flow for owned in rendered.values() for flow in owned.flows]
    for flow in sorted(flows, key=lambda flow: (flow.table, -flow.priority, flow_symbols(flow))):
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
        for group in owned.groups:
            yield group_text(group)
    flows = [flow for owned in rendered.values() for flow in owned.flows]
    for flow in sorted(flows, key=lambda flow: (flow.table, -flow.priority, flow_symbols(flow))):
        yield flow_text(flow)


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
