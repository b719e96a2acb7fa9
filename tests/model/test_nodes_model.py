"""Facts that the model derives: families, gateways, MAC addresses."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

from windlass.model.families import Family, family_of
from windlass.model.nodes import AttachedPod, LocalNode, OperatingSystem, Peer, TrafficMode, TunnelType, mac_for

NODE = LocalNode(
    name="node-1",
    mode=TrafficMode.ENCAP,
    tunnel=TunnelType.GENEVE,
    os=OperatingSystem.LINUX,
    addresses={
        Family.IPV6: ip_interface("fd00:10:176:25::11/64"),
        Family.IPV4: ip_interface("10.176.25.11/24"),
    },
    pod_cidrs={Family.IPV6: ip_network("fd00:172:16:1::/64"), Family.IPV4: ip_network("172.16.1.0/24")},
    uplink_mac="02:00:00:00:00:01",
)


def test_families_of_addresses_networks_and_interfaces():
    assert family_of(ip_address("10.0.0.1")) is Family.IPV4
    assert family_of(ip_network("fd00::/8")) is Family.IPV6
    assert family_of(ip_interface("10.0.0.1/8")) is Family.IPV4
    assert [str(family) for family in Family] == ["IPv4", "IPv6"]


def test_a_node_serves_the_families_in_which_it_has_an_address_and_pods():
    assert NODE.families == (Family.IPV4, Family.IPV6)


def test_the_gateway_is_the_first_address_of_the_pod_cidr():
    assert NODE.gateway(Family.IPV4) == ip_address("172.16.1.1")
    assert NODE.gateway(Family.IPV6) == ip_address("fd00:172:16:1::1")
    assert NODE.gateway_mac == "0a:58:ac:10:01:01"
    assert Peer("node-2", {}, {Family.IPV4: ip_network("172.16.2.0/24")}).gateway(Family.IPV4) == ip_address(
        "172.16.2.1"
    )


def test_a_mac_is_a_function_of_the_address():
    assert mac_for(ip_address("172.16.1.10")) == "0a:58:ac:10:01:0a"
    assert mac_for(ip_address("fd00:172:16:1::1:20")) == "0a:58:00:01:00:20"


def test_a_pod_is_known_by_namespace_and_name():
    pod = AttachedPod("shop", "web-0", "c1", "web-0-c1", 10, "0a:58:ac:10:01:0a", (ip_address("172.16.1.10"),))
    assert pod.key == "shop/web-0"
