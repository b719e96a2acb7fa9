"""The peers of a Node: no two share addresses, and single changes give the same result as the whole state."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.cluster.nodes import Identity, identity
from windlass.cluster.objects import Metadata, Node, NodeAddress, NodeSpec, NodeStatus, Problem
from windlass.model.families import Family
from windlass.model.nodes import Peer
from windlass.nodes.peers import Peers


def node(
    name: str = "node-1", *, internal: tuple[str, ...] = ("10.176.25.11",), cidrs: tuple[str, ...] = ("172.16.1.0/24",)
) -> Node:
    addresses = tuple(NodeAddress("InternalIP", ip) for ip in internal)
    return Node(Metadata(name), NodeSpec(pod_cidrs=cidrs), NodeStatus(addresses))


def by_name(*nodes: Node) -> dict[str, Node]:
    return {node.metadata.name: node for node in nodes}


def peers(*nodes: Node, own: Identity | None = None) -> tuple[Mapping[str, Peer], list[Problem]]:
    """Of a Node that has not seen any before."""
    return after([by_name(*nodes)], own)


def after(states: list[dict[str, Node]], own: Identity | None = None) -> tuple[Mapping[str, Peer], list[Problem]]:
    """Of a Node that saw these states of the cluster one after the other."""
    found = Peers()
    for nodes in states:
        found.follow(nodes, own or OWN)
    return found.usable, found.problems()


def refusals(*nodes: Node, own: Identity | None = None) -> dict[str, str]:
    _, problems = peers(*nodes, own=own)
    return {problem.where: problem.sentence for problem in problems}


OWN = identity(node("node-1"))


def test_all_others_are_peers():
    found, problems = peers(
        node("node-1"),
        node("node-2", internal=("10.176.25.12",), cidrs=("172.16.2.0/24",)),
        node("node-3", internal=("10.176.26.13",), cidrs=("172.16.3.0/24",)),
    )
    assert problems == []
    assert found == {
        name: Peer(name, {Family.IPV4: ip_address(ip)}, {Family.IPV4: ip_network(cidr)})
        for name, ip, cidr in (("node-2", "10.176.25.12", "172.16.2.0/24"), ("node-3", "10.176.26.13", "172.16.3.0/24"))
    }


def test_an_unusable_node_does_not_affect_the_others():
    found, problems = peers(node("node-2", cidrs=()), node("node-3", cidrs=("172.16.3.0/24",)))
    assert list(found) == ["node-3"]
    [problem] = problems
    assert str(problem) == (
        "Node node-2: spec.podCIDRs is empty: does the controller-manager run with --allocate-node-cidrs?; "
        "its Pods cannot be reached until this is corrected"
    )


@pytest.mark.parametrize("cidr", ["172.16.1.0/24", "172.16.1.128/25", "172.16.0.0/16"])
def test_a_peer_never_takes_our_own_pod_cidr(cidr):
    assert refusals(node("a", cidrs=(cidr,))) == {
        "Node a": f"its PodCIDR {cidr} overlaps that of Node node-1, which keeps it; "
        "its Pods cannot be reached until this is corrected"
    }


def test_of_two_peers_that_claim_the_same_the_first_by_name_has_it():
    found, problems = peers(
        node("b", cidrs=("172.16.2.0/24",)),
        node("a", cidrs=("172.16.0.0/22",)),
        node("c", cidrs=("172.16.2.0/25",)),
        own=identity(node("node-1", cidrs=("172.17.0.0/24",))),
    )
    assert list(found) == ["a"]
    assert [problem.where for problem in problems] == ["Node b", "Node c"]


def test_a_node_reports_that_it_shares_its_pod_cidr():
    """To third Nodes it may be the one that cannot be reached; and it may be the only one whose agent runs."""
    refused = refusals(node("node-1"), node("a", cidrs=("172.16.1.128/25",)), node("b", cidrs=("172.16.0.0/16",)))
    assert list(refused) == ["Node a", "Node b", "Node node-1"]
    assert refused["Node node-1"].startswith("its PodCIDR 172.16.1.0/24 overlaps that of Node a, b; delete one of them")


def test_the_one_that_had_it_keeps_it():
    """A Node that joins with a PodCIDR in use, by mistake, must not cut off the one that uses it."""
    z = node("z", cidrs=("172.16.2.0/24",))
    found, _ = after([by_name(z), by_name(node("a", cidrs=("172.16.2.0/24",)), z)])
    assert list(found) == ["z"]


def test_the_one_that_had_it_keeps_it_also_from_a_known_peer():
    a, z = node("a", cidrs=("172.16.3.0/24",)), node("z", cidrs=("172.16.2.0/24",))
    found, problems = after([by_name(a, z), by_name(node("a", cidrs=("172.16.2.0/24",)), z)])
    assert list(found) == ["z"]
    assert [problem.where for problem in problems] == ["Node a"]


def test_a_pod_cidr_that_is_given_up_can_be_taken():
    a, z = node("a", cidrs=("172.16.3.0/24",)), node("z", cidrs=("172.16.2.0/24",))
    swapped = by_name(node("a", cidrs=("172.16.2.0/24",)), node("z", cidrs=("172.16.3.0/24",)))
    found, problems = after([by_name(a, z), swapped])
    assert (set(found), problems) == ({"a", "z"}, [])


def test_an_overlap_in_one_family_refuses_both():
    """Half a peer would be reached in one family and not in the other: worse to find than none."""
    dual = ("10.176.25.12", "fd00:10:176:25::12")
    found, problems = peers(
        node("a", internal=dual, cidrs=("172.16.2.0/24", "fd00:172:16:2::/64")),
        node("b", internal=dual, cidrs=("172.16.3.0/24", "fd00:172:16:2::/80")),
        node("c", internal=dual, cidrs=("172.16.3.0/24", "fd00:172:16:3::/64")),
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
    found, problems = peers(*nodes)
    held = [OWN.pod_cidrs[Family.IPV4], *(peer.pod_cidrs[Family.IPV4] for peer in found.values())]
    for place, one in enumerate(held):
        assert not any(one.overlaps(other) for other in held[place + 1 :])
    assert len(found) + len(problems) == len(nodes)
    for problem in problems:  # each refusal has a reason
        refused = ip_network(claimed[int(problem.where[-2:]) - 2])
        assert any(refused.overlaps(other) for other in held)


node_sets = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["172.16.2.0/24", "172.16.3.0/24", "172.16.2.0/23", "wrong"])
)


@given(st.lists(node_sets, max_size=8))
@settings(deadline=None)
def test_following_single_changes_is_the_same_as_comparing_all(states):
    """Of each state the names that changed are given to one of the two, and nothing to the other."""
    by_names, whole, nodes = Peers(), Peers(), {}
    for cidrs in states:
        before = nodes
        nodes = by_name(*(node(name, cidrs=(cidr,)) for name, cidr in cidrs.items()))
        names = {name for name in nodes.keys() | before.keys() if nodes.get(name) != before.get(name)}
        known = by_names.usable
        changed = by_names.follow(nodes, OWN, names)
        assert changed == whole.follow(nodes, OWN)
        assert by_names.usable == whole.usable
        assert list(map(str, by_names.problems())) == list(map(str, whole.problems()))
        assert {name: by_names.usable.get(name) for name in changed}.items() <= {
            name: peer
            for name in known.keys() | by_names.usable.keys()
            if (peer := by_names.usable.get(name)) != known.get(name)
        }.items()
