"""The builder of NodeState: one change at a time leads to the same state as building it whole."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.cluster.changes import EVERYTHING
from windlass.cluster.clusters import Cluster
from windlass.cluster.nodes import NotUsable
from windlass.cluster.objects import EndpointSlice, Node, Pod, Service, ServiceCIDR
from windlass.cluster.sources import changes_between
from windlass.host.protocol import Uplink
from windlass.model.families import Family
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.nodes.group_numbers import GroupNumbers
from windlass.nodes.identities import local_node, other_addresses, own_identity, service_cidrs, serving_node
from windlass.nodes.peers import Peers
from windlass.nodes.services import NodeServices
from windlass.nodes.states import NodeFacts, node_state, run_to_end

CONFIG = Config(node_name="node-1", node_port_addresses=("10.0.0.0/8",))
ADAPTER = Uplink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface("10.176.25.11/24"),))
HELD = tuple(map(ip_address, ("10.176.25.11", "10.176.27.11", "172.16.1.1", "10.96.0.9")))


def node(number: int, cidr: int | None = None) -> Node:
    return msgspec.convert(
        {
            "kind": "Node",
            "metadata": {"name": f"node-{number}"},
            "spec": {"podCIDRs": [f"172.16.{number if cidr is None else cidr}.0/24"]},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": f"10.176.25.{10 + number}"},
                    {"type": "ExternalIP", "address": f"203.0.113.{number}"},
                ]
            },
        },
        Node,
    )


def service(number: int, node_port: int) -> Service:
    spec = {
        "type": "NodePort" if node_port else "ClusterIP",
        "clusterIP": f"10.96.0.{number}",
        "ports": [{"name": "http", "port": 80, **({"nodePort": node_port} if node_port else {})}],
    }
    return msgspec.convert({"kind": "Service", "metadata": {"name": f"s{number}"}, "spec": spec}, Service)


def endpoint_slice(number: int, pods: list[int]) -> EndpointSlice:
    metadata = {"name": f"s{number}-x", "labels": {"kubernetes.io/service-name": f"s{number}"}}
    endpoints = [{"addresses": [f"172.16.2.{pod}"]} for pod in pods]
    ports = [{"name": "http", "port": 8080}]
    one = {"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4"}
    return msgspec.convert({**one, "ports": ports, "endpoints": endpoints}, EndpointSlice)


def pod(number: int, host_port: int) -> Pod:
    spec = {"containers": [{"ports": [{"containerPort": 8080, "hostPort": host_port}]}]}
    one = {"kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}
    return msgspec.convert({**one, "status": {"podIPs": [{"ip": f"172.16.1.{number}"}]}}, Pod)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Each Service has a NodePort of its own: which of two gets a port may depend on the order in which they came."""
    others = draw(st.dictionaries(st.integers(2, 5), st.none()))
    services, slices = {}, {}
    for number in draw(st.sets(st.integers(1, 4))):
        services[f"default/s{number}"] = service(number, draw(st.sampled_from([0, 30000 + number])))
        pods = draw(st.sets(st.integers(2, 4)))
        slices[f"default/s{number}-x"] = endpoint_slice(number, sorted(pods))
    return Cluster(
        nodes={one.key: one for one in (node(1), *map(node, others))},
        services=services,
        slices=slices,
        pods={f"default/p{number}": pod(number, 9000 + number) for number in draw(st.sets(st.integers(5, 7)))},
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(clusters(), min_size=1, max_size=6))
def test_one_change_at_a_time_leads_to_the_same_state(states):
    peers, services, before = Peers(), NodeServices(GroupNumbers()), None
    for cluster in states:
        own = own_identity(CONFIG, cluster)
        names = (
            {n for n in {*cluster.nodes, *before.nodes} if before.nodes.get(n) != cluster.nodes.get(n)}
            if before
            else None
        )
        peers.follow(cluster.nodes, own, names)
        changes = changes_between(before, cluster) if before else EVERYTHING
        run_to_end(services.following(cluster, serving_node(CONFIG, cluster, own), changes))
        cidrs, _ = service_cidrs(CONFIG, cluster)
        local = local_node(CONFIG, own, ADAPTER, other_addresses(own, HELD, cidrs), cidrs)
        kept = NodeState(local, peers.usable, {}, services.services)
        whole = node_state(CONFIG, cluster, NodeFacts(ADAPTER, HELD))
        assert (kept.node, kept.peers, kept.pods) == (whole.node, whole.peers, whole.pods)
        assert dict(kept.services) == dict(whole.services)
        before = cluster


def test_other_addresses_are_those_that_the_host_holds():
    """Not those of the Node object, of the Pod network, or of Services."""
    cidr = msgspec.convert(
        {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}}, ServiceCIDR
    )
    cluster = Cluster(nodes={"node-1": node(1)}, service_cidrs={"kubernetes": cidr})
    state = node_state(CONFIG, cluster, NodeFacts(ADAPTER, HELD))
    assert state.node.other_addresses == (ip_address("10.176.27.11"),)
    assert [str(network) for network in state.node.node_port_networks] == ["10.0.0.0/8"]


def test_host_ports_of_pods_are_among_the_services():
    cluster = Cluster(nodes={"node-1": node(1)}, pods={"default/p5": pod(5, 9005)})
    (served,) = node_state(CONFIG, cluster, NodeFacts(ADAPTER)).services.values()
    assert [(port.family, port.frontends[0].port) for port in served.ports] == [(Family.IPV4, 9005)]


def test_a_node_that_is_not_in_the_cluster_cannot_be_built():
    with pytest.raises(NotUsable, match=r"node-1 is not in the cluster \(known: node-2\)"):
        node_state(CONFIG, Cluster(nodes={"node-2": node(2)}), NodeFacts(ADAPTER))
