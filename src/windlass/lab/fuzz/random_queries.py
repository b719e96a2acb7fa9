"""Random connections to a cluster: a client connects to one of the addresses of a Service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from windlass.lab.fuzz import oracle
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.oracle import Client, FrontendKind, Query
from windlass.lab.scenarios.objects import LabNode, LabService, LabServicePort
from windlass.model.families import Family, IPAddress, family_of

UNUSED = 4444  # a port that no Service has
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class QueryProbe:
    """A query, and how a Probe expresses it."""

    query: Query
    kind: FrontendKind
    service: str
    port: str  # its name, or its number
    to: dict[str, object]
    where: str  # a word for the name of the probe
    entry: str  # where the packet enters, as the scenario format defines it: the client's Node, else the target Node


def throw(dice: Dice, cluster: ClusterView, services: Iterable[str]) -> QueryProbe | None:
    """None if the random choice gives nothing that can be probed."""
    service = cluster.services[dice.one(sorted(services))]
    if not service.is_served or not service.spec.ports:
        return None
    port, family = dice.one(service.spec.ports), dice.one([family_of(ip) for ip in service.cluster_ips])
    client = dice.one(clients(cluster)[dice.weighted({"pods": 0.4, "nodes": 0.3, "hosts": 0.3})])
    kind = dice.weighted(
        {
            FrontendKind.CLUSTER_IP: 0 if client.host else 3,
            FrontendKind.UNUSED_PORT: 0 if client.host else 0.3,
            FrontendKind.NODE_PORT: 5 if port.node_port else 0,
            FrontendKind.EXTERNAL_IP: 3 if service.external_ips else 0,
            FrontendKind.LOAD_BALANCER: 4 if service.status.load_balancer else 0,
            None: 0.01,
        }
    )
    match kind:
        case FrontendKind.CLUSTER_IP | FrontendKind.UNUSED_PORT:
            return _cluster_ip(cluster, client, service, port, family, kind)
        case FrontendKind.NODE_PORT:
            return _node_port(dice, cluster, client, service, port, family)
        case FrontendKind.EXTERNAL_IP | FrontendKind.LOAD_BALANCER:
            return _external(dice, cluster, client, service, port, kind)
        case _:
            return None


def clients(cluster: ClusterView) -> dict[str, list[Client]]:
    return {
        "pods": [Client(pod=key) for key in cluster.pods],
        "nodes": [Client(node=name) for name in cluster.nodes],
        "hosts": [Client(host=name) for name in cluster.hosts],
    }


def gone(cluster: ClusterView, client: Client, address: IPAddress, port: LabServicePort) -> QueryProbe:
    """A connection to the ClusterIP of a Service that was deleted."""
    query = Query(client, address, port.port, port.protocol.value)
    to: dict[str, object] = {"address": str(address), "port": port.port}
    return QueryProbe(query, FrontendKind.CLUSTER_IP, "", _name(port), to, "gone", oracle.home_of(cluster, client))


def _cluster_ip(
    cluster: ClusterView, client: Client, service: LabService, port: LabServicePort, family: Family, kind: FrontendKind
) -> QueryProbe:
    address = next(ip for ip in service.cluster_ips if family_of(ip) is family)
    number = port.port if kind is FrontendKind.CLUSTER_IP else UNUSED
    query = Query(client, address, number, port.protocol.value)
    name = _name_or_number(port) if kind is FrontendKind.CLUSTER_IP else UNUSED
    to: dict[str, object] = {"service": service.key, "port": name, "family": str(family)}
    where = "clusterip" if kind is FrontendKind.CLUSTER_IP else "unused-port"
    return QueryProbe(query, kind, service.key, _name(port), to, where, oracle.home_of(cluster, client))


def _node_port(
    dice: Dice, cluster: ClusterView, client: Client, service: LabService, port: LabServicePort, family: Family
) -> QueryProbe | None:
    """A NodePort, at the client's own Node more often than at others."""
    home = oracle.home_of(cluster, client)
    node = cluster.nodes[home] if home and dice.chance(0.6) else dice.one(list(cluster.nodes.values()))
    addresses = [str(address) for address in node.all_addresses if family_of(address) is family]
    asks_as_node = client.node or (client.pod and cluster.pods[client.pod].spec.host_network)
    if asks_as_node and node.name == home and family is Family.IPV4:
        addresses.append(LOOPBACK)
    if not addresses:
        return None
    address = dice.one(addresses)
    query = Query(client, ip_address(address), port.node_port or 0, port.protocol.value)
    to: dict[str, object] = {"nodePort": service.key, "port": _name_or_number(port), "node": node.name}
    to |= {} if address == str(node.all_addresses[0]) else {"address": address}
    where = f"{'loopback' if address == LOOPBACK else _part(node, address)}-of-{node.name}"
    return QueryProbe(query, FrontendKind.NODE_PORT, service.key, _name(port), to, where, home or node.name)


def _external(
    dice: Dice, cluster: ClusterView, client: Client, service: LabService, port: LabServicePort, kind: FrontendKind
) -> QueryProbe | None:
    """The scenario format names the first external address of a Service. Others are probed by address, but not from an
    external host: the underlay would have no route.
    """
    addresses = service.external_ips if kind is FrontendKind.EXTERNAL_IP else service.load_balancer_ips
    if not addresses:
        return None
    address, home = dice.one(addresses), oracle.home_of(cluster, client)
    via = dice.one(list(cluster.nodes))
    owner = next((node.name for node in cluster.nodes.values() if address in node.all_addresses), "")
    first, word = address == addresses[0], "externalIP" if kind is FrontendKind.EXTERNAL_IP else "loadBalancer"
    if owner or (home and not first):
        query = Query(client, address, port.port, port.protocol.value)
        to: dict[str, object] = {"address": str(address), "port": port.port}
        where = f"{word.lower()}-of-{owner}" if owner else word.lower()
        return QueryProbe(query, kind, service.key, _name(port), to, where, home or owner)
    proxied = kind is FrontendKind.LOAD_BALANCER and address not in service.served_load_balancer_ips
    if not first or (client.host and (proxied or oracle.on_one_wire(cluster.hosts[client.host].addresses, address))):
        return None  # no machine answers ARP for a load balancer address on its segment
    to = {word: service.key, "port": _name_or_number(port)}
    if home:
        query = Query(client, address, port.port, port.protocol.value)
        return QueryProbe(query, kind, service.key, _name(port), to, word.lower(), home)
    query = Query(client, address, port.port, port.protocol.value, via)
    to |= {"node": via}
    return QueryProbe(query, kind, service.key, _name(port), to, f"{word.lower()}-by-{via}", via)


# Names ----------------------------------------------------------------------------------------------------------


def _part(node: LabNode, address: str) -> str:
    main = {str(node.addresses.get(family)) for family in Family}
    return "main" if address in main else "other"


def _name(port: LabServicePort) -> str:
    return port.name or f"{port.protocol.value.lower()}-{port.port}"


def _name_or_number(port: LabServicePort) -> str | int:
    return port.name or port.port
