"""The identity of this Node: what its Node object, its NIC and its configuration say about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import ip_network

from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode, zone_of
from windlass.cluster.nodes import Identity, NotUsable, identity
from windlass.cluster.objects import Problem
from windlass.cluster.services import service_networks
from windlass.host.protocol import Uplink
from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.nodes import LocalNode, TrafficMode
from windlass.nodes.config import Config, DatapathType
from windlass.pipeline.datapaths import DATAPATHS


def own_identity(config: Config, cluster: Cluster) -> Identity:
    name = config.node_name
    if name not in cluster.nodes:
        known = ", ".join(sorted(cluster.nodes)[:5]) or "none"
        raise NotUsable(f"Node {name} is not in the cluster (known: {known}); check nodeName in the configuration")
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
    """The networks of ClusterIPs: those of ServiceCIDR objects and those of the configuration."""
    declared, problems = service_networks(cluster.service_cidrs)
    return tuple(dict.fromkeys((*declared, *map(ip_network, config.service_cidrs)))), problems


def local_node(
    config: Config, own: Identity, adapter: Uplink, others: Collection[IPAddress], service_networks: Iterable[IPNetwork]
) -> LocalNode:
    """`others`: the host's addresses besides the Node IPs. NotUsable if the NIC lacks a Node IP."""
    held = {address.ip: address for address in adapter.addresses}
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
        service_cidrs=tuple(service_networks),
        node_port_networks=tuple(ip_network(text) for text in config.node_port_addresses),
        userspace=config.datapath_type is DatapathType.NETDEV,
        ports_reserved=config.reserves_ports,
    )
    if not node.families:
        raise NotUsable(f"{DATAPATHS[own.os].name} forwards {', '.join(map(str, families))} only")
    return node


def other_addresses(
    own: Identity, held: Collection[IPAddress], service_networks: Collection[IPNetwork]
) -> tuple[IPAddress, ...]:
    """The addresses that the host holds in addition to its Node IPs.

    The addresses in the Node object are not used: a cloud may list addresses there that it translates. Addresses of the
    Pod network and ClusterIPs are left out: some programs add them to an interface, but the switch serves them.
    """
    ours = (*own.pod_cidrs.values(), *service_networks)
    others = (a for a in held if a not in own.addresses.values() and not any(a in network for network in ours))
    return tuple(sorted(others, key=lambda address: (address.version, int(address))))
