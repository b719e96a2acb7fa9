"""The UDP port of the tunnel is removed from Services, host ports and endpoints."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from api_objects import NODE, endpoint, service, slice_of
from served_services import follow

from windlass.cluster.catalogues import Catalogue
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import Node, Pod

PORT = 6081
TUNNELLED = replace(NODE, tunnel_port=PORT, node_ports=range(6000, 32768))
UDP = {"port": PORT, "protocol": "UDP"}
DNS = {"name": "dns", "port": 53, "protocol": "UDP"}


def node(name: str, *addresses: str) -> Node:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return msgspec.convert({"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}, Node)


NODES = {"a": node("a", "10.176.25.11", "not an address"), "b": node("b", "10.176.25.12", "2001:db8::12")}


def followed(cluster: Cluster, serving=TUNNELLED) -> tuple[list[str], list[str]]:
    """The frontends of all Services, and all problems."""
    made = Catalogue()
    follow(made, cluster, serving)
    return doors(made), [str(problem) for problem in made.problems]


def doors(made: Catalogue) -> list[str]:
    found = (door for one in made.services.values() for port in one.ports for door in port.frontends)
    return [f"{door.address or 'node'}:{door.port}" for door in found]


def test_an_external_address_of_a_node_keeps_its_other_ports():
    web = service("web", externalIPs=["10.176.25.12", "192.0.2.7"], ports=[UDP, DNS])
    assert followed(Cluster(services={web.key: web}, nodes=NODES)) == (
        ["10.96.0.10:6081", "192.0.2.7:6081", "10.96.0.10:53", "10.176.25.12:53", "192.0.2.7:53"],
        ["Service default/web: address 10.176.25.12 port 6081/UDP is the tunnel port of Node b; the rest is served"],
    )


def test_a_load_balancer_address_of_a_node():
    web = service("web", type="LoadBalancer", ports=[UDP], ingress=[{"ip": "10.176.25.11"}])
    assert followed(Cluster(services={web.key: web}, nodes=NODES)) == (
        ["10.96.0.10:6081"],
        ["Service default/web: address 10.176.25.11 port 6081/UDP is the tunnel port of Node a; the rest is served"],
    )


def test_a_node_port():
    web = service("web", type="NodePort", ports=[DNS | {"nodePort": PORT}])
    assert followed(Cluster(services={web.key: web}, nodes=NODES)) == (
        ["10.96.0.10:53"],
        ["Service default/web: port 6081/UDP of the Node is the tunnel port of every Node; the rest is served"],
    )


def test_tcp_is_not_affected():
    web = service("web", type="NodePort", externalIPs=["10.176.25.12"], ports=[{"port": PORT, "nodePort": PORT}])
    found, problems = followed(Cluster(services={web.key: web}, nodes=NODES))
    assert (sorted(found), problems) == (["10.176.25.12:6081", "10.96.0.10:6081", "node:6081"], [])


def test_without_a_tunnel_the_port_is_like_any_other():
    web = service("web", externalIPs=["10.176.25.12"], ports=[UDP])
    serving = replace(TUNNELLED, tunnel_port=0)
    found, problems = followed(Cluster(services={web.key: web}, nodes=NODES), serving)
    assert (sorted(found), problems) == (["10.176.25.12:6081", "10.96.0.10:6081"], [])


def test_an_endpoint_at_the_tunnel_port_of_a_node():
    web = service("web", ports=[DNS])
    ports = [{"name": "dns", "port": PORT, "protocol": "UDP"}]
    one = slice_of(endpoint("10.176.25.12"), endpoint("172.16.2.9"), ports=ports)
    made = Catalogue()
    follow(made, Cluster(services={web.key: web}, slices={one.key: one}, nodes=NODES), TUNNELLED)
    (port,) = made.services["default/web"].ports
    assert [str(found.address) for found in port.endpoints] == ["172.16.2.9"]
    assert port.anywhere
    assert [str(problem) for problem in made.problems] == [
        "Service default/web: endpoint 10.176.25.12 port 6081/UDP is the tunnel port of Node b; the rest is served"
    ]


def test_a_host_port():
    content = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": PORT, "protocol": "UDP"}]}]},
        "status": {"podIPs": [{"ip": "172.16.1.9"}]},
    }
    pod = msgspec.convert(content, Pod)
    assert followed(Cluster(pods={pod.key: pod}, nodes=NODES)) == (
        [],
        ["Pod default/web: port 6081/UDP of the Node is the tunnel port of every Node; the rest is served"],
    )


def test_nodes_that_come_and_go_affect_only_services_at_that_port():
    web = service("web", externalIPs=["10.176.25.12"], ports=[UDP])
    other = service("other", clusterIPs=["10.96.0.11"], externalIPs=["10.176.25.12"], ports=[DNS])
    services = {one.key: one for one in (web, other)}
    made = Catalogue()
    follow(made, Cluster(services=services, nodes={"a": NODES["a"]}), TUNNELLED)
    assert "10.176.25.12:6081" in doors(made)
    assert follow(made, Cluster(services=services, nodes=NODES), TUNNELLED) == {"default/web"}
    assert "10.176.25.12:6081" not in doors(made)
    assert follow(made, Cluster(services=services, nodes={"a": NODES["a"]}), TUNNELLED) == {"default/web"}
    assert "10.176.25.12:6081" in doors(made)
    assert made.problems == ()
