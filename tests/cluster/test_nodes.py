"""What a Node object says about its Node."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from windlass.cluster.nodes import NotUsable, identity, is_leaving
from windlass.cluster.objects import LEAVING_TAINT, Metadata, Node, NodeAddress, NodeSpec, NodeStatus, Taint
from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem


def node(
    name: str = "node-1",
    *,
    internal: tuple[str, ...] = ("10.176.25.11",),
    external: tuple[str, ...] = (),
    cidrs: tuple[str, ...] = ("172.16.1.0/24",),
    **labels: str,
) -> Node:
    addresses = (NodeAddress("Hostname", name), *(NodeAddress("InternalIP", ip) for ip in internal))
    addresses += tuple(NodeAddress("ExternalIP", ip) for ip in external)
    return Node(Metadata(name, labels=labels), NodeSpec(pod_cidrs=cidrs), NodeStatus(addresses))


def test_both_families_in_any_order():
    found = identity(
        node(
            internal=("fd00:10:176:25::11", "10.176.25.11", "10.176.27.11"),
            external=("192.0.2.11",),
            cidrs=("fd00:172:16:1::/64", "172.16.1.0/24"),
        )
    )
    assert found.addresses == {
        Family.IPV4: ip_address("10.176.25.11"),
        Family.IPV6: ip_address("fd00:10:176:25::11"),
    }
    assert found.pod_cidrs == {
        Family.IPV4: ip_network("172.16.1.0/24"),
        Family.IPV6: ip_network("fd00:172:16:1::/64"),
    }
    assert found.other_addresses == (ip_address("10.176.27.11"), ip_address("192.0.2.11"))


def test_an_external_ip_is_never_the_node_ip():
    found = identity(
        Node(
            Metadata("a"),
            NodeSpec(pod_cidrs=("172.16.1.0/24",)),
            NodeStatus((NodeAddress("ExternalIP", "192.0.2.1"), NodeAddress("InternalIP", "10.0.0.1"))),
        )
    )
    assert found.addresses == {Family.IPV4: ip_address("10.0.0.1")}
    assert found.other_addresses == (ip_address("192.0.2.1"),)


def test_an_address_that_is_listed_twice_counts_once():
    """Some clouds list the InternalIP as ExternalIP, too."""
    found = identity(node(internal=("10.0.0.1", "10.0.0.2", "10.0.0.2"), external=("10.0.0.1", "192.0.2.1")))
    assert found.other_addresses == (ip_address("10.0.0.2"), ip_address("192.0.2.1"))


@pytest.mark.parametrize(
    ("labels", "os"),
    [
        ({}, OperatingSystem.LINUX),
        ({"kubernetes.io/os": "linux"}, OperatingSystem.LINUX),
        ({"kubernetes.io/os": "windows"}, OperatingSystem.WINDOWS),
        ({"kubernetes.io/os": "plan9"}, OperatingSystem.LINUX),
    ],
)
def test_the_operating_system_is_a_label(labels, os):
    assert identity(node(**labels)).os is os


@pytest.mark.parametrize(
    ("unusable", "sentence"),
    [
        (node(internal=()), "status.addresses has no InternalIP: the kubelet sets it"),
        (node(internal=("10.0.0.300",)), "status.addresses[1]: '10.0.0.300' is not an IP address"),
        (node(external=("here",)), "status.addresses[2]: 'here' is not an IP address"),
        (node(cidrs=()), "spec.podCIDRs is empty: does the controller-manager run with --allocate-node-cidrs?"),
        (node(cidrs=("172.16.1.5/24",)), "spec.podCIDRs[0]: 172.16.1.5/24 has host bits set"),
        (node(cidrs=("mine",)), "spec.podCIDRs[0]: 'mine' does not appear to be an IPv4 or IPv6 network"),
        (node(cidrs=("172.16.1.0/31",)), "spec.podCIDRs[0]: 172.16.1.0/31 has no room for a gateway and a Pod"),
        (
            node(cidrs=("172.16.1.0/24", "172.16.2.0/24")),
            "spec.podCIDRs[1]: 172.16.2.0/24 is the second of its family; one of each is used",
        ),
        (node(cidrs=("fd00::/64",)), "no family has both an InternalIP and a PodCIDR"),
    ],
)
def test_a_node_that_lacks_something_that_forwarding_needs(unusable, sentence):
    with pytest.raises(NotUsable) as refusal:
        identity(unusable)
    assert str(refusal.value) == sentence


def test_taints_of_the_scheduler_are_no_change_of_a_node():
    assert NodeSpec(taints=(Taint("node.kubernetes.io/unreachable"),)) == NodeSpec()
    leaving = NodeSpec(taints=(Taint("example.com/mine"), Taint(LEAVING_TAINT)))
    assert is_leaving(Node(Metadata("a"), leaving))
    assert not is_leaving(Node(Metadata("a"), NodeSpec(taints=(Taint("example.com/mine"),))))
