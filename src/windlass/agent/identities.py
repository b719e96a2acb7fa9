"""Who this Node is: by the cluster's word, by its NIC and by the configuration. Pure."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_network

from windlass.cluster.endpoints import ServingNode, zone_of
from windlass.cluster.nodes import Identity, NotUsable, identity
from windlass.cluster.objects import Cluster, Problem
from windlass.cluster.services import service_networks
from windlass.host.plans import pod_mtu
from windlass.host.protocol import Adapter
from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.nodes import LocalNode, TrafficMode
from windlass.nodes.config import Config, DatapathType
from windlass.pipeline.datapaths import DATAPATHS
from windlass.switch.bridges import BridgeSpec, TunnelSpec
from windlass.switch.tunnel_routes import TunnelRoute


def own_identity(config: Config, cluster: Cluster) -> Identity:
    name = config.node_name
    if name not in cluster.nodes:
        known = ", ".join(sorted(cluster.nodes)[:5]) or "none"
        raise NotUsable(f"Node {name} is not in the cluster (there: {known}); nodeName in the configuration names it")
    return identity(cluster.nodes[name])


def serving_node(config: Config, cluster: Cluster, own: Identity) -> ServingNode:
    families = tuple(family for family in Family if family in own.addresses and family in own.pod_cidrs)
    return ServingNode(
        own.name,
        zone_of(cluster.nodes[own.name]),
        families,
        own.os,
        own.pod_cidrs,
        config.node_ports,
        tuple(own.addresses.values()),
        0 if config.traffic_mode is TrafficMode.NO_ENCAP else config.tunnel_type.udp_port,
    )


def service_cidrs(config: Config, cluster: Cluster) -> tuple[tuple[IPNetwork, ...], list[Problem]]:
    """Where ClusterIPs come from, by the cluster's word and by the configuration's."""
    told, problems = service_networks(cluster.service_cidrs)
    return tuple(dict.fromkeys((*told, *map(ip_network, config.service_cidrs)))), problems


def local_node(config: Config, own: Identity, adapter: Adapter, others: Collection[IPAddress]) -> LocalNode:
    """`others`: further addresses of the host."""
    held = {address.ip: address.interface for address in adapter.addresses}
    families = DATAPATHS[own.os].families
    missing = [str(address) for address in own.addresses.values() if address not in held]
    if missing:
        raise NotUsable(f"{', '.join(missing)} is not on {adapter.name}; its NIC must hold the Node's InternalIPs")
    node = LocalNode(
        name=own.name,
        mode=config.traffic_mode,
        tunnel=config.tunnel_type,
        os=own.os,
        addresses={family: held[address] for family, address in own.addresses.items() if family in families},
        pod_cidrs={family: cidr for family, cidr in own.pod_cidrs.items() if family in families},
        uplink_mac=adapter.mac,
        other_addresses=tuple(others),
        node_port_networks=tuple(ip_network(text) for text in config.node_port_addresses),
        userspace=config.datapath_type is DatapathType.NETDEV,
    )
    if not node.families:
        raise NotUsable(f"{DATAPATHS[own.os].name} forwards {', '.join(map(str, families))} only")
    return node


def other_addresses(
    own: Identity, held: Collection[IPAddress], service_networks: Collection[IPNetwork]
) -> tuple[IPAddress, ...]:
    """What the host holds besides its Node IPs, by its own word: a cloud may list addresses that it translates.

    Without addresses of the Pod network and ClusterIPs: some programs add them to an interface; the switch serves them.
    """
    ours = (*own.pod_cidrs.values(), *service_networks)
    others = (a for a in held if a not in own.addresses.values() and not any(a in network for network in ours))
    return tuple(sorted(others, key=lambda address: (address.version, int(address))))


def bridge_spec(config: Config, node: LocalNode, adapter: Adapter, boot: str) -> BridgeSpec:
    underlay = Family.IPV4 if Family.IPV4 in node.addresses else Family.IPV6
    # In user space the routes that it is told name the source; it would look for an address among those it is not told.
    local_ip = None if node.userspace else node.addresses[underlay].ip
    tunnel = TunnelSpec(config.tunnel_type, config.tunnel, local_ip)
    return BridgeSpec(
        name=config.bridge,
        datapath_type=config.datapath_type.value,
        hwaddr=node.uplink_mac,
        gateway=config.gateway,
        gateway_mac=node.gateway_mac,
        uplink=adapter.name,
        uplink_index=adapter.index,
        boot=boot,
        tunnel=None if config.traffic_mode is TrafficMode.NO_ENCAP else tunnel,
        mtu=adapter.mtu,
        gateway_mtu=pod_mtu(node, adapter.mtu, config.mtu or None),
        numbers=node.ports,
    )


def tunnel_routes(adapter: Adapter) -> list[TunnelRoute]:
    """By which other Nodes are reached: the networks of the NIC, and what is behind a router in one of them."""
    networks = {address.network for address in adapter.addresses}
    routes = {network: TunnelRoute(network) for network in networks}
    for route in sorted(adapter.routes, key=lambda route: route.metric, reverse=True):
        if route.via and not route.table and any(route.via in network for network in networks):
            routes[route.destination] = TunnelRoute(route.destination, route.via)
    return list(routes.values())
