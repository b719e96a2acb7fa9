"""The objects of a World for an API server: complete, and accepted by it."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from windlass.lab.control import api_objects
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.desired_states import DesiredState

WORLD = """
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [172.16.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.1.0.11}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, containers: [{ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, deletionTimestamp: 2026-01-01T00:00:00Z}
spec: {nodeName: node-1}
status: {conditions: [{type: Ready, status: "False"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: written}
spec: {selector: {app: web}, clusterIP: 10.96.0.11, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: written-1, labels: {kubernetes.io/service-name: written}}
addressType: IPv4
endpoints: []
"""


SHARED = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports:
  - {name: http, port: 80, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP, nodePort: 30080}
  - {name: other, port: 81}
  - {name: another, port: 82}
"""


def read(folder: Path, content: str) -> DesiredState:
    (folder / "desired.yaml").write_text(content)
    ((_, desired),) = scenario_files.find_one(folder).read().states()
    return desired


def test_a_node_port_of_two_protocols_is_made_in_two_steps(tmp_path):
    """An API server accepts it only as a change."""
    (service,) = api_objects.published(read(tmp_path, SHARED), {})["Service"]
    assert [port["name"] for port in service.document["spec"]["ports"]] == ["http", "dns", "other", "another"]
    assert [port["name"] for port in service.created_as["spec"]["ports"]] == ["http", "other", "another"]


def test_a_world(tmp_path):
    desired = read(tmp_path, WORLD)
    found = api_objects.published(desired, {"shop/web-0": (ip_address("172.16.1.5"),)})
    made = [kind for kind, listed in found.items() if listed]
    assert made == ["Node", "Namespace", "Service", "EndpointSlice", "Pod"]
    by_path = {one.path: one for listed in found.values() for one in listed}
    assert [one.path for one in found["Namespace"]] == ["/api/v1/namespaces/default", "/api/v1/namespaces/shop"]

    node = by_path["/api/v1/nodes/node-1"]
    assert "status" not in node.document
    assert node.status == {"addresses": [{"type": "InternalIP", "address": "10.1.0.11"}]}

    pod = by_path["/api/v1/namespaces/shop/pods/web-0"]
    assert pod.document["spec"]["containers"] == [{"name": "c0", "image": "lab", "ports": [{"containerPort": 80}]}]
    assert pod.status["podIPs"] == [{"ip": "172.16.1.5"}]
    assert pod.status["conditions"] == [{"type": "Ready", "status": "True"}]
    assert not pod.is_terminating

    going = by_path["/api/v1/namespaces/shop/pods/web-1"]
    assert going.is_terminating
    assert "deletionTimestamp" not in going.document["metadata"]
    assert going.status["conditions"] == [{"type": "Ready", "status": "False"}]

    web = by_path["/api/v1/namespaces/shop/services/web"]
    assert web.document["spec"]["ipFamilyPolicy"] == "RequireDualStack"
    assert web.document["spec"]["selector"] == {"app": "web"}

    written = by_path["/api/v1/namespaces/default/services/written"]
    assert "selector" not in written.document["spec"]  # else the controller would add slices of its own
    assert written.status == {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    assert "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/written-1" in by_path
