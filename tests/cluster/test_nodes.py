"""From Node objects to who this Node is and who its peers are."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.cluster.nodes import Identity, NotUsable, identity, is_leaving, peers
from windlass.cluster.objects import LEAVING_TAINT, Cluster, Metadata, Node, NodeAddress, NodeSpec, NodeStatus, Taint
from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem, Peer


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


def cluster(*nodes: Node) -> Cluster:
    return Cluster("r1", {node.metadata.name: node for node in nodes})


OWN = identity(node("node-1"))


def refusals(*nodes: Node, own: Identity = OWN, before: dict[str, Peer] | None = None) -> dict[str, str]:
    _, problems = peers(cluster(*nodes), own, before or {})
    return {problem.where: problem.sentence for problem in problems}


# Who is it? -------------------------------------------------------------------------------------------------------


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
def test_what_forwarding_needs_and_is_not_there(unusable, sentence):
    with pytest.raises(NotUsable) as refusal:
        identity(unusable)
    assert str(refusal.value) == sentence


# Who are the others? ----------------------------------------------------------------------------------------------


def test_all_others_are_peers():
    found, problems = peers(
        cluster(
            node("node-1"),
            node("node-2", internal=("10.176.25.12",), cidrs=("172.16.2.0/24",)),
            node("node-3", internal=("10.176.26.13",), cidrs=("172.16.3.0/24",)),
        ),
        OWN,
        {},
    )
    assert problems == []
    assert found == {
        name: Peer(name, {Family.IPV4: ip_address(ip)}, {Family.IPV4: ip_network(cidr)})
        for name, ip, cidr in (("node-2", "10.176.25.12", "172.16.2.0/24"), ("node-3", "10.176.26.13", "172.16.3.0/24"))
    }


def test_a_node_that_cannot_be_used_costs_only_itself():
    found, problems = peers(cluster(node("node-2", cidrs=()), node("node-3", cidrs=("172.16.3.0/24",))), OWN, {})
    assert list(found) == ["node-3"]
    [problem] = problems
    assert str(problem) == (
        "Node node-2: spec.podCIDRs is empty: does the controller-manager run with --allocate-node-cidrs?; "
        "its Pods cannot be reached until this is mended"
    )


@pytest.mark.parametrize("cidr", ["172.16.1.0/24", "172.16.1.128/25", "172.16.0.0/16"])
def test_a_peer_never_takes_our_own_pod_cidr(cidr):
    assert refusals(node("a", cidrs=(cidr,))) == {
        "Node a": f"its PodCIDR {cidr} overlaps that of Node node-1, which keeps it; "
        "its Pods cannot be reached until this is mended"
    }


def test_of_two_peers_that_claim_the_same_the_first_by_name_has_it():
    found, problems = peers(
        cluster(
            node("b", cidrs=("172.16.2.0/24",)),
            node("a", cidrs=("172.16.0.0/22",)),
            node("c", cidrs=("172.16.2.0/25",)),
        ),
        identity(node("node-1", cidrs=("172.17.0.0/24",))),
        {},
    )
    assert list(found) == ["a"]
    assert [problem.where for problem in problems] == ["Node b", "Node c"]


def test_a_node_that_shares_its_pod_cidr_says_so_of_itself():
    """To third Nodes it may be the one that cannot be reached; and it may be the only one whose agent runs."""
    refused = refusals(node("node-1"), node("a", cidrs=("172.16.1.128/25",)), node("b", cidrs=("172.16.0.0/16",)))
    assert list(refused) == ["Node a", "Node b", "Node node-1"]
    assert refused["Node node-1"].startswith("its PodCIDR 172.16.1.0/24 overlaps that of Node a, b; one of them")


def test_taints_of_the_scheduler_make_no_other_node():
    assert NodeSpec(taints=(Taint("node.kubernetes.io/unreachable"),)) == NodeSpec()
    leaving = NodeSpec(taints=(Taint("example.com/mine"), Taint(LEAVING_TAINT)))
    assert is_leaving(Node(Metadata("a"), leaving))
    assert not is_leaving(Node(Metadata("a"), NodeSpec(taints=(Taint("example.com/mine"),))))


def test_the_one_that_had_it_keeps_it():
    """A Node that joins with a PodCIDR in use, by mistake, must not cut off the one that uses it."""
    z = node("z", cidrs=("172.16.2.0/24",))
    before, _ = peers(cluster(z), OWN, {})
    found, _ = peers(cluster(node("a", cidrs=("172.16.2.0/24",)), z), OWN, before)
    assert list(found) == ["z"]


def test_the_one_that_had_it_keeps_it_also_from_a_known_peer():
    a, z = node("a", cidrs=("172.16.3.0/24",)), node("z", cidrs=("172.16.2.0/24",))
    before, _ = peers(cluster(a, z), OWN, {})
    found, problems = peers(cluster(node("a", cidrs=("172.16.2.0/24",)), z), OWN, before)
    assert list(found) == ["z"]
    assert [problem.where for problem in problems] == ["Node a"]


def test_a_pod_cidr_that_is_given_up_can_be_taken():
    a, z = node("a", cidrs=("172.16.3.0/24",)), node("z", cidrs=("172.16.2.0/24",))
    before, _ = peers(cluster(a, z), OWN, {})
    swapped = cluster(node("a", cidrs=("172.16.2.0/24",)), node("z", cidrs=("172.16.3.0/24",)))
    found, problems = peers(swapped, OWN, before)
    assert (set(found), problems) == ({"a", "z"}, [])


def test_an_overlap_in_one_family_refuses_both():
    """Half a peer would be reached in one family and not in the other: worse to find than none."""
    dual = ("10.176.25.12", "fd00:10:176:25::12")
    found, problems = peers(
        cluster(
            node("a", internal=dual, cidrs=("172.16.2.0/24", "fd00:172:16:2::/64")),
            node("b", internal=dual, cidrs=("172.16.3.0/24", "fd00:172:16:2::/80")),
            node("c", internal=dual, cidrs=("172.16.3.0/24", "fd00:172:16:3::/64")),
        ),
        OWN,
        {},
    )
    assert set(found) == {"a", "c"}
    assert [problem.where for problem in problems] == ["Node b"]


cidrs = st.builds(
    lambda base, length: str(ip_network((base << 8, length), strict=False)),
    st.integers(0xAC1000, 0xAC1020),
    st.integers(19, 26),
)


@given(st.lists(cidrs, max_size=12))
@settings(deadline=None)
def test_no_two_peers_ever_overlap(claimed):
    nodes = [node(f"node-{number:02}", cidrs=(cidr,)) for number, cidr in enumerate(claimed, start=2)]
    found, problems = peers(cluster(*nodes), OWN, {})
    held = [OWN.pod_cidrs[Family.IPV4], *(peer.pod_cidrs[Family.IPV4] for peer in found.values())]
    for place, one in enumerate(held):
        assert not any(one.overlaps(other) for other in held[place + 1 :])
    assert len(found) + len(problems) == len(nodes)
    for problem in problems:  # and nobody was refused without a reason
        refused = ip_network(claimed[int(problem.where[-2:]) - 2])
        assert any(refused.overlaps(other) for other in held)
