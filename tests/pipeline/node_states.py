"""Node states for tests of the core: a small fixed cluster, and generated ones."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface

from hypothesis import strategies as st
from msgspec import structs

from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork
from windlass.model.nodes import (
    AttachedPod,
    LocalNode,
    NodeState,
    OperatingSystem,
    Peer,
    TrafficMode,
    TunnelType,
    mac_for,
)
from windlass.model.policies import (
    DENY_UNTIL_KNOWN,
    Direction,
    NodePolicies,
    PeerEntry,
    PodPolicies,
    PodPolicy,
    PolicySubject,
)
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, difference, ports, union
from windlass.model.prefixes import prefix_of, prefix_text
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedPort, ServedService

BOTH = (Family.IPV4, Family.IPV6)
SECOND_SEGMENT = 26


def node_address(number: int, segment: int, family: Family) -> IPAddress:
    if family is Family.IPV4:
        return IPv4Address(f"10.176.{segment}.{number + 10}")
    return IPv6Address(f"fd00:10:176:{segment}::{number + 10}")


def interface(address: IPAddress) -> IPInterface:
    return ip_interface((address, 24 if address.version == 4 else 64))


def pod_cidr(number: int, family: Family) -> IPNetwork:
    return (
        IPv4Network(f"172.16.{number}.0/24") if family is Family.IPV4 else IPv6Network(f"fd00:172:16:{number:x}::/64")
    )


def local_node(
    mode: TrafficMode,
    *families: Family,
    os: OperatingSystem = OperatingSystem.LINUX,
    others: tuple[IPAddress, ...] = (),
) -> LocalNode:
    return LocalNode(
        name="node-1",
        mode=mode,
        tunnel=TunnelType.GENEVE,
        os=os,
        addresses={family: interface(node_address(1, 25, family)) for family in families},
        pod_cidrs={family: pod_cidr(1, family) for family in families},
        uplink_mac="02:00:0a:b0:19:0b",
        other_addresses=others,
    )


def peer(number: int, segment: int, *families: Family) -> Peer:
    return Peer(
        f"node-{number}",
        {family: node_address(number, segment, family) for family in families},
        {family: pod_cidr(number, family) for family in families},
    )


def attached_pod(number: int, *addresses: IPAddress) -> AttachedPod:
    return AttachedPod(
        "default", f"web-{number}", f"c{number}", f"web-{number}", 10 + number, mac_for(addresses[0]), addresses
    )


def small_cluster(mode: TrafficMode, *families: Family, os: OperatingSystem = OperatingSystem.LINUX) -> NodeState:
    """node-1 with two Pods and a second NIC; node-2 in its segment, node-3 behind a router."""
    peers = (peer(2, 25, *families), peer(3, SECOND_SEGMENT, *families))
    pods = (attached_pod(n, *(pod_cidr(1, family)[9 + n] for family in families)) for n in (1, 2))
    return NodeState(
        local_node(mode, *families, os=os, others=tuple(node_address(1, 27, f) for f in families)),
        {found.name: found for found in peers},
        {pod.container_id: pod for pod in pods},
    )


# Services ----------------------------------------------------------------------------------------------------------


def cluster_ip(number: int, family: Family) -> IPAddress:
    return IPv4Address(f"10.96.0.{number}") if family is Family.IPV4 else IPv6Address(f"fd00:10:96::{number}")


def load_balancer(number: int, family: Family) -> IPAddress:
    return IPv4Address(f"203.0.113.{number}") if family is Family.IPV4 else IPv6Address(f"2001:db8:203::{number}")


def outside(number: int, family: Family) -> IPAddress:
    return IPv4Address(f"192.0.2.{number}") if family is Family.IPV4 else IPv6Address(f"2001:db8:192::{number}")


def pod_address(node: int, number: int, family: Family) -> IPAddress:
    return pod_cidr(node, family)[9 + number]


GROUPS_OF_A_PORT = 256


def service_port(
    number: int, frontends: tuple[Frontend, ...], endpoints: tuple[Endpoint, ...], family: Family, name: str = "http"
) -> ServedPort:
    """As the builder of NodeState makes it: local endpoints if a policy needs them, and its own group numbers."""
    local_only = any(frontend.local_only for frontend in frontends)
    return ServedPort(
        name=name,
        protocol=Protocol.TCP,
        family=family,
        frontends=frontends,
        endpoints=endpoints,
        local_endpoints=tuple(endpoint for endpoint in endpoints if endpoint.local) if local_only else (),
        anywhere=bool(endpoints),
        group=GROUPS_OF_A_PORT * (2 * number + (family is Family.IPV6)),
    )


def small_services(*families: Family) -> tuple[ServedService, ...]:
    """One of each kind: with Pods, with Nodes, without endpoints, and with session affinity."""

    def web(family: Family) -> ServedPort:
        pods = (Endpoint.at(pod_address(1, 1, family), 8080, local=True), Endpoint.at(pod_address(2, 1, family), 8080))
        frontends = (
            Frontend(Reach.CLUSTER_IP, cluster_ip(10, family), 80),
            Frontend(Reach.NODE_PORT, None, 30080),
        )
        return service_port(1, frontends, pods, family)

    def ingress(family: Family) -> ServedPort:
        nodes = (
            Endpoint.at(node_address(1, 25, family), 8443, local=True),
            Endpoint.at(node_address(2, 25, family), 8443),
        )
        known = (IPv4Network("198.51.100.0/24"),) if family is Family.IPV4 else (IPv6Network("2001:db8:198::/64"),)
        frontends = (
            Frontend(Reach.CLUSTER_IP, cluster_ip(20, family), 443),
            Frontend(Reach.NODE_PORT, None, 30443, local_only=True),
            Frontend(Reach.EXTERNAL, load_balancer(20, family), 443, local_only=True, sources=known),
        )
        return service_port(2, frontends, nodes, family)

    def sticky(family: Family) -> ServedPort:
        pods = (Endpoint.at(pod_address(1, 1, family), 8080, local=True), Endpoint.at(pod_address(2, 1, family), 8080))
        port = service_port(4, (Frontend(Reach.CLUSTER_IP, cluster_ip(40, family), 80),), pods, family)
        return structs.replace(port, affinity_seconds=10800)

    def idle(family: Family) -> ServedPort:
        frontends = (
            Frontend(Reach.CLUSTER_IP, cluster_ip(30, family), 80),
            Frontend(Reach.EXTERNAL, load_balancer(30, family), 80),
        )
        return service_port(3, frontends, (), family)

    return tuple(
        ServedService(
            "default",
            make.__name__,
            tuple(make(family) for family in families),
            tuple(cluster_ip(number, family) for family in families),
        )
        for number, make in ((10, web), (20, ingress), (30, idle), (40, sticky))
    )


def serving_cluster(mode: TrafficMode, *families: Family, os: OperatingSystem = OperatingSystem.LINUX) -> NodeState:
    """The small cluster with its Services."""
    served = {service.key: service for service in small_services(*families)}
    return replace(small_cluster(mode, *families, os=os), services=served)


def over_sctp(state: NodeState) -> NodeState:
    return in_user_space(state, Protocol.SCTP)


def in_user_space(state: NodeState, protocol: Protocol) -> NodeState:
    """The same with a userspace datapath, and with all Services over this protocol."""
    return replace(with_ports(state, protocol=protocol), node=replace(state.node, userspace=True))


def with_ports(state: NodeState, **changes: int) -> NodeState:
    """The same with these changes to all ports of its Services."""
    services = {
        key: structs.replace(service, ports=tuple(structs.replace(port, **changes) for port in service.ports))
        for key, service in state.services.items()
    }
    return replace(state, services=services)


# Policies ------------------------------------------------------------------------------------------------------------


def with_policies(state: NodeState) -> NodeState:
    """The first Pod has policies in both directions, with every kind of verdict; the second is not known yet."""
    first, second = state.pods.values()
    some = union([ports(Protocol.TCP, 80, 90), ports(Protocol.UDP, 53, 53)])
    most = difference(ALL_PORTS, ports(Protocol.TCP, 1, 1023))
    subjects = (
        PolicySubject(Direction.EGRESS, 0xE1, ALL_PORTS, {0xC1: NO_PORTS, 0xC2: some}),
        PolicySubject(Direction.INGRESS, 0x11, NO_PORTS, {0xC1: ALL_PORTS, 0xC2: most}),
    )
    networks = [pod_cidr(2, family) for family in state.node.families]
    peers = [
        *(PeerEntry(prefix_of(network), 0xC1, 0xC1) for network in networks),
        *(PeerEntry(prefix_of(network[7]), 0xC2, None) for network in networks),
        *(PeerEntry(prefix_of(network[8]), None, 0xC2) for network in networks),
    ]
    itself = tuple(zip(map(prefix_of, first.addresses), (NO_PORTS, some), strict=False))
    policies = NodePolicies(
        pods={first.key: PodPolicies(PodPolicy(0xE1, itself), PodPolicy(0x11, itself)), second.key: DENY_UNTIL_KNOWN},
        subjects={PolicySubject.key_of(one.direction, one.number): one for one in subjects},
        ports={one.key: one for subject in subjects for one in subject.port_sets},
        peers={prefix_text(one.prefix): one for one in peers},
    )
    return replace(state, policies=policies)


# Generated states ---------------------------------------------------------------------------------------------------

families = st.sampled_from([(Family.IPV4,), (Family.IPV6,), BOTH])
modes = st.sampled_from(TrafficMode)


@st.composite
def local_nodes(draw: st.DrawFn, os: OperatingSystem = OperatingSystem.LINUX) -> LocalNode:
    # The builder of LocalNode leaves out IPv6 on Windows, which cannot do it.
    own = (Family.IPV4,) if os is OperatingSystem.WINDOWS else draw(families)
    second: list[tuple[IPAddress, ...]] = [(), (IPv4Address("10.176.27.11"),), (IPv6Address("fd00:10:176:27::11"),)]
    others = draw(st.sampled_from(second))
    node_ports = draw(st.sampled_from([(), (IPv4Network("10.176.25.0/24"),), (IPv4Network("10.176.27.0/24"),)]))
    userspace = draw(st.booleans())
    node = local_node(draw(modes), *own, os=os, others=others)
    return replace(node, node_port_networks=node_ports, userspace=userspace)


@st.composite
def peers(draw: st.DrawFn, number: int) -> Peer:
    """Also peers with PodCIDRs of a family in which their Node has no address."""
    addressed = peer(number, draw(st.sampled_from([25, SECOND_SEGMENT])), *draw(families))
    with_pods = dict.fromkeys((*draw(families), *addressed.addresses))
    return Peer(addressed.name, addressed.addresses, {family: pod_cidr(number, family) for family in with_pods})


@st.composite
def attached_pods(draw: st.DrawFn, number: int) -> AttachedPod:
    # Several host parts, so that a Pod that is created again may have another address.
    host = 10 * number + draw(st.integers(0, 9))
    return attached_pod(number, *(pod_cidr(1, family)[host] for family in draw(families)))


@st.composite
def services(draw: st.DrawFn, number: int) -> ServedService:
    """Services never share a frontend here: `cluster.claims` resolves such conflicts before."""
    own = draw(families)
    protocols = draw(st.lists(st.sampled_from(Protocol), min_size=1, max_size=2))
    ports = tuple(
        draw(service_ports(number, index, protocol, family))
        for index, protocol in enumerate(protocols)
        for family in own
    )
    return ServedService("default", f"service-{number}", ports, tuple(cluster_ip(number, family) for family in own))


@st.composite
def service_ports(draw: st.DrawFn, number: int, index: int, protocol: Protocol, family: Family) -> ServedPort:
    own_number = 10 * number + index
    everywhere = [
        (Reach.CLUSTER_IP, cluster_ip(number, family), 80 + index),
        (Reach.NODE_PORT, None, 30000 + own_number),
        (Reach.EXTERNAL, load_balancer(number, family), 1000 + own_number),
        # The Node's own address may be an external address, too; then ports distinguish the Services.
        (Reach.EXTERNAL, node_address(1, 25, family), 1000 + own_number),
    ]
    frontends = tuple(
        Frontend(*where, draw(st.booleans()), draw(source_ranges(family)) if where[0] is Reach.EXTERNAL else None)
        for where in draw(st.lists(st.sampled_from(everywhere), unique=True))
    )
    found = draw(st.lists(st.sampled_from(endpoints(number, family)), max_size=5, unique=True))
    port = service_port(number, frontends, tuple(found), family, name=f"port-{index}")
    group = GROUPS_OF_A_PORT * (2 * own_number + (family is Family.IPV6))
    seconds = draw(st.sampled_from([0, 0, 1, 10800, 86400]))
    return structs.replace(port, protocol=protocol, group=group, affinity_seconds=seconds)


def source_ranges(family: Family) -> st.SearchStrategy[tuple[IPNetwork, ...] | None]:
    """Ranges of this family; some contain others, and one contains the Node itself."""
    clients: tuple[IPNetwork, ...] = (IPv4Network("198.51.100.0/24"), IPv4Network("0.0.0.0/0"))
    if family is Family.IPV6:
        clients = (IPv6Network("2001:db8:198::/64"), IPv6Network("::/0"))
    known = [*clients, interface(node_address(1, 25, family)).network]
    return st.none() | st.lists(st.sampled_from(known), unique=True).map(tuple)


def endpoints(number: int, family: Family) -> list[Endpoint]:
    """Pods here and elsewhere, this Node and another, and a machine outside."""
    return [
        *(Endpoint.at(pod_address(1, host, family), 8080, local=True) for host in (1, 2, 3)),
        *(Endpoint.at(pod_address(node, 1, family), 8080) for node in (2, 3)),
        # Each Service has its own port on the Node: two with the same would share the flow for its replies.
        Endpoint.at(node_address(1, 25, family), 9000 + number, local=True),
        Endpoint.at(node_address(2, 25, family), 8080),
        Endpoint.at(outside(80, family), 8080),
    ]


numbers = st.sets(st.integers(2, 9), max_size=5)


@st.composite
def node_states(draw: st.DrawFn, os: OperatingSystem = OperatingSystem.LINUX) -> NodeState:
    found = [draw(peers(number)) for number in sorted(draw(numbers))]
    pods = [draw(attached_pods(number)) for number in sorted(draw(numbers))]
    served = [draw(services(number)) for number in sorted(draw(st.sets(st.integers(2, 9), max_size=2)))]
    return NodeState(
        draw(local_nodes(os)),
        {peer.name: peer for peer in found},
        {pod.container_id: pod for pod in pods},
        {service.key: service for service in served},
    )
