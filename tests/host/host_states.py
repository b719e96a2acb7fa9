"""The Node of the host's tests: both families and hybrid mode, so that it has all kinds of routes."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, NodeState, OperatingSystem, Peer, TrafficMode, TunnelType


def node(mode: TrafficMode) -> LocalNode:
    return LocalNode(
        name="node-1",
        mode=mode,
        tunnel=TunnelType.GENEVE,
        os=OperatingSystem.LINUX,
        addresses={Family.IPV4: ip_interface("192.0.2.5/24"), Family.IPV6: ip_interface("2001:db8::5/64")},
        pod_cidrs={Family.IPV4: ip_network("10.0.1.0/24"), Family.IPV6: ip_network("2001:db8:1::/64")},
        uplink_mac="02:00:00:00:00:05",
    )


def peer(name: str, address: str, address6: str, number: int) -> Peer:
    return Peer(
        name=name,
        addresses={Family.IPV4: ip_address(address), Family.IPV6: ip_address(address6)},
        pod_cidrs={
            Family.IPV4: ip_network(f"10.0.{number}.0/24"),
            Family.IPV6: ip_network(f"2001:db8:{number}::/64"),
        },
    )


PEERS = {
    "near": peer("near", "192.0.2.6", "2001:db8::6", 2),
    "far": peer("far", "192.0.99.7", "2001:db8:99::7", 3),
}
STATE = NodeState(node(TrafficMode.HYBRID), PEERS)
