"""Node states for tests of the core: a small cluster that people know by heart, and arbitrary ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface

from hypothesis import strategies as st

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
        local_node(mode, *families, os=os, others=(IPv4Address("10.176.27.11"),)),
        {found.name: found for found in peers},
        {pod.container_id: pod for pod in pods},
    )


# Arbitrary ones ------------------------------------------------------------------------------------------------

families = st.sampled_from([(Family.IPV4,), (Family.IPV6,), BOTH])
modes = st.sampled_from(TrafficMode)


@st.composite
def local_nodes(draw: st.DrawFn, os: OperatingSystem = OperatingSystem.LINUX) -> LocalNode:
    # What Windows cannot do in IPv6 is kept from it by whoever makes the LocalNode.
    own = (Family.IPV4,) if os is OperatingSystem.WINDOWS else draw(families)
    others = draw(st.sampled_from([(), (IPv4Address("10.176.27.11"),), (IPv6Address("fd00:10:176:27::11"),)]))
    return local_node(draw(modes), *own, os=os, others=others)


@st.composite
def peers(draw: st.DrawFn, number: int) -> Peer:
    """Also one that has PodCIDRs of a family in which its Node has no address."""
    addressed = peer(number, draw(st.sampled_from([25, SECOND_SEGMENT])), *draw(families))
    with_pods = dict.fromkeys((*draw(families), *addressed.addresses))
    return Peer(addressed.name, addressed.addresses, {family: pod_cidr(number, family) for family in with_pods})


@st.composite
def attached_pods(draw: st.DrawFn, number: int) -> AttachedPod:
    # Several host parts, so that a Pod that comes again under its name may have another address.
    host = 10 * number + draw(st.integers(0, 9))
    return attached_pod(number, *(pod_cidr(1, family)[host] for family in draw(families)))


numbers = st.sets(st.integers(2, 9), max_size=5)


@st.composite
def node_states(draw: st.DrawFn, os: OperatingSystem = OperatingSystem.LINUX) -> NodeState:
    found = [draw(peers(number)) for number in sorted(draw(numbers))]
    pods = [draw(attached_pods(number)) for number in sorted(draw(numbers))]
    return NodeState(
        draw(local_nodes(os)), {peer.name: peer for peer in found}, {pod.container_id: pod for pod in pods}
    )
