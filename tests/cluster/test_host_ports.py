"""Host ports of Pods, as Services."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import msgspec
import pytest
from served_services import follow

from windlass.cluster import host_ports
from windlass.cluster.catalogues import Catalogue
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import Pod, Service
from windlass.model.families import Family
from windlass.model.services import Protocol, Reach

NODE = ServingNode(
    "node-1",
    "",
    (Family.IPV4,),
    pod_cidrs={Family.IPV4: ip_network("172.16.1.0/24")},
    addresses=(ip_address("10.176.25.11"),),
)


def pod(*ports: dict[str, object], phase: str = "Running", host_network: bool = False, ip: str = "172.16.1.5") -> Pod:
    content = {
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"hostNetwork": host_network, "containers": [{"name": "c", "ports": list(ports)}]},
        "status": {"phase": phase, "podIPs": [{"ip": ip}] if ip else []},
    }
    return msgspec.convert(content, Pod)


WEB = {"containerPort": 8080, "hostPort": 80}


def test_a_host_port_is_a_node_port_with_one_endpoint_that_sees_its_clients():
    service, problems = host_ports.serve(pod(WEB), NODE)
    assert problems == []
    assert service is not None
    assert service.key == host_ports.key_of("shop/web")
    assert host_ports.pod_of(service.key) == "shop/web"
    (port,) = service.ports
    (frontend,) = port.frontends
    assert (frontend.reach, frontend.address, frontend.port, frontend.local_only) == (Reach.NODE_PORT, None, 80, True)
    assert [(one.address, one.port, one.local) for one in port.local_endpoints] == [
        (ip_address("172.16.1.5"), 8080, True)
    ]


@pytest.mark.parametrize("host_ip", ["10.176.25.11", "127.0.0.1"])
def test_a_host_port_at_one_address_of_the_node(host_ip: str):
    service, problems = host_ports.serve(pod({**WEB, "hostIP": host_ip, "protocol": "UDP"}), NODE)
    assert problems == []
    assert service is not None
    (port,) = service.ports
    assert port.protocol is Protocol.UDP
    assert [(one.reach, str(one.address)) for one in port.frontends] == [(Reach.EXTERNAL, host_ip)]


def test_one_port_at_several_addresses_and_protocols():
    ports = [{**WEB, "hostIP": "127.0.0.1"}, {**WEB, "hostIP": "10.176.25.11"}, {**WEB, "protocol": "UDP"}]
    service, _ = host_ports.serve(pod(*ports), NODE)
    assert service is not None
    assert len(service.ports) == 3


@pytest.mark.parametrize(
    ("port", "complaint"),
    [
        ({**WEB, "hostIP": "8.8.8.8"}, "8.8.8.8 is not an address of this Node"),
        ({**WEB, "hostIP": "example"}, "example is not an address of this Node"),
        ({**WEB, "hostPort": 70000}, "hostPort 70000/TCP is not served"),
        ({**WEB, "protocol": "IPX"}, "hostPort 80/IPX is not served"),
    ],
)
def test_an_unusable_host_port_is_a_problem_and_the_others_are_served(port: dict[str, object], complaint: str):
    service, (problem,) = host_ports.serve(pod(port, {"containerPort": 1, "hostPort": 2}), NODE)
    assert complaint in str(problem)
    assert str(problem).startswith("Pod shop/web: ")
    assert service is not None
    assert [frontend.port for one in service.ports for frontend in one.frontends] == [2]


@pytest.mark.parametrize(
    "one",
    [pod({"containerPort": 80}), pod(WEB, host_network=True), pod(WEB, phase="Succeeded"), pod(WEB, ip="")],
    ids=["no hostPort", "hostNetwork", "ended", "no address yet"],
)
def test_pods_without_host_ports_to_serve(one: Pod):
    assert host_ports.serve(one, NODE) == (None, [])


def test_host_ports_come_and_go_with_their_pod():
    catalogue = Catalogue()
    key = host_ports.key_of("shop/web")
    assert follow(catalogue, Cluster(pods={"shop/web": pod(WEB)}), NODE) == {key}
    assert follow(
        catalogue, Cluster(pods={"shop/web": pod(WEB, ip="172.16.1.6")}), NODE, ChangeSet.of({Pod: {"shop/web"}})
    ) == {key}
    assert follow(catalogue, Cluster(), NODE, ChangeSet.of({Pod: {"shop/web"}})) == {key}
    assert catalogue.services == {}


def test_a_node_port_that_a_service_has_is_not_taken_from_it():
    spec = {"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 1, "nodePort": 30080}]}
    service = msgspec.convert(
        {"kind": "Service", "metadata": {"name": "api", "namespace": "shop"}, "spec": spec}, Service
    )
    catalogue = Catalogue()
    follow(catalogue, Cluster(services={"shop/api": service}), NODE)
    both = Cluster(services={"shop/api": service}, pods={"shop/web": pod({**WEB, "hostPort": 30080})})
    follow(catalogue, both, NODE, ChangeSet.of({Pod: {"shop/web"}}))
    assert [str(problem) for problem in catalogue.problems] == [
        "Pod shop/web: NodePort 30080/TCP belongs to Service shop/api; the rest of the Service is served"
    ]
