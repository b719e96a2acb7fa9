"""Slices as the endpoint controller would create them, and the folder of manifests that the agents read."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest
import yaml
from msgspec import convert

from windlass.lab.control import endpoint_slices, manifests
from windlass.lab.fuzz import cluster_views
from windlass.lab.fuzz import eligible_endpoints as oracle
from windlass.lab.fuzz.documents import identity
from windlass.lab.scenarios import desired_states
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.objects import KUBERNETES_KINDS, KubernetesObject
from windlass.model.families import Family

NODES = """
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: east}},
   spec: {podCIDRs: [10.1.1.0/24]}, status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}}
"""
ATTACHED = {
    "default/a": (ip_address("10.1.1.5"), ip_address("fd01::5")),
    "default/b": (ip_address("10.1.1.6"),),
    "other/c": (ip_address("10.1.1.7"),),
}


def pod(name, *, namespace="default", port=8080, more=""):
    return (
        f"- {{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: web}}}},"
        f" spec: {{nodeName: n1, containers: [{{ports: [{{name: http, containerPort: {port}}}]}}]}}{more}}}\n"
    )


def service(spec="selector: {app: web}, clusterIP: 10.96.0.1, ports: [{name: h, port: 80, targetPort: http}]"):
    return f"- {{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: default}}, spec: {{{spec}}}}}\n"


def world_of(*texts):
    return DesiredState().after(
        [
            KubernetesObject(raw["kind"], convert(raw, KUBERNETES_KINDS[raw["apiVersion"], raw["kind"]]), raw)
            for raw in yaml.safe_load(NODES + "".join(texts))
        ],
        [],
        [],
    )


def slices(*texts):
    desired = world_of(*texts)
    return list(endpoint_slices.slices(desired, desired_states.pod_addresses(desired, ATTACHED)))


def endpoint(made):
    (one,) = made
    (found,) = one["endpoints"]
    return found


def test_selected_pods_of_the_namespace_become_endpoints():
    (one,) = slices(service(), pod("a"), pod("b"), pod("c", namespace="other"))
    assert one["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert (one["addressType"], one["ports"]) == ("IPv4", [{"name": "h", "protocol": "TCP", "port": 8080}])
    assert [e["addresses"] for e in one["endpoints"]] == [["10.1.1.5"], ["10.1.1.6"]]
    assert one["endpoints"][0] == {
        "addresses": ["10.1.1.5"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": "n1",
        "targetRef": {"kind": "Pod", "name": "a", "namespace": "default"},
        "zone": "east",
    }


def test_each_family_has_its_slice():
    both = "selector: {app: web}, clusterIPs: [10.96.0.1, 'fd96::1'], ports: [{port: 80}]"
    v4, v6 = slices(service(both), pod("a"), pod("b"))
    assert (v6["metadata"]["name"], v6["addressType"]) == ("web-ipv6", "IPv6")
    assert [e["addresses"] for e in v6["endpoints"]] == [["fd01::5"]]
    assert v4["ports"][0]["port"] == 80


def test_a_named_port_with_several_numbers_makes_several_slices():
    made = slices(service(), pod("a"), pod("b", port=9090))
    assert [(s["metadata"]["name"], s["ports"][0]["port"]) for s in made] == [("web-ipv4", 8080), ("web-ipv4-1", 9090)]


@pytest.mark.parametrize(
    ("more", "conditions"),
    [
        (", status: {conditions: [{type: Ready, status: 'False'}]}", (False, False, False)),
        (", status: {conditions: [{type: Ready, status: 'True'}]}", (True, True, False)),
        (", status: {conditions: [{type: Initialized, status: 'False'}]}", (True, True, False)),
    ],
)
def test_conditions_follow_the_pod(more, conditions):
    found = endpoint(slices(service(), pod("a", more=more)))["conditions"]
    assert (found["ready"], found["serving"], found["terminating"]) == conditions


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("leaving", [True, False])
@pytest.mark.parametrize("published", [True, False])
def test_conditions_are_those_of_the_real_controller(ready, leaving, published):
    """As `podToEndpoint` of k8s.io/endpointslice has them: to publish what is not ready says that it is, nothing else.
    The fuzzer's oracle, which has its own reading of the rules, says the same.
    """
    one = pod("a", more=f", status: {{conditions: [{{type: Ready, status: '{ready}'}}]}}")
    one = one.replace("labels:", "deletionTimestamp: 2024-01-01T00:00:00Z, labels:") if leaving else one
    ports = "ports: [{name: h, port: 80, targetPort: http}]"
    web = service(f"selector: {{app: web}}, clusterIP: 10.96.0.1, publishNotReadyAddresses: {published}, {ports}")
    conditions = {"ready": published or (ready and not leaving), "serving": ready, "terminating": leaving}
    assert endpoint(slices(web, one))["conditions"] == conditions

    documents = yaml.safe_load(NODES + web + one)
    seen = cluster_views.read({identity(document): document for document in documents})
    asked = seen.services["default/web"]
    (judged,) = oracle.endpoints(seen, asked, asked.spec.ports[0], Family.IPV4)
    assert {name: getattr(judged, name) for name in conditions} == conditions


def test_a_host_network_pod_has_its_nodes_address():
    found = endpoint(slices(service(), pod("h").replace("nodeName: n1", "nodeName: n1, hostNetwork: true")))
    assert found["addresses"] == ["10.0.0.11"]


def test_a_service_without_pods_has_an_empty_slice():
    (one,) = slices(service())
    assert one["endpoints"] == []


def test_written_slices_external_names_and_services_without_selector_are_left_alone():
    written = (
        "- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x, namespace: default,"
        " labels: {kubernetes.io/service-name: web}}}\n"
    )
    assert slices(service(), pod("a"), written) == []
    assert slices(service("type: ExternalName, selector: {app: web}"), pod("a")) == []
    assert slices(service("ports: [{port: 80}]"), pod("a")) == []


def test_the_folder_holds_the_objects_with_addresses_and_slices(tmp_path):
    desired = world_of(service(), pod("a"))
    addresses = desired_states.pod_addresses(desired, ATTACHED)
    manifests.write(tmp_path, manifests.render(desired, addresses))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "EndpointSlice.default.web-ipv4.yaml", "Node.n1.yaml", "Pod.default.a.yaml", "Service.default.web.yaml",
    ]  # fmt: skip
    written = json.loads((tmp_path / "Pod.default.a.yaml").read_text())
    assert written["status"] == {"podIP": "10.1.1.5", "podIPs": [{"ip": "10.1.1.5"}, {"ip": "fd01::5"}]}


def test_only_changed_manifests_are_written_and_old_ones_removed(tmp_path):
    desired = world_of(service(), pod("a"))
    manifests.write(tmp_path, manifests.render(desired, {}))
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    manifests.write(tmp_path, manifests.render(world_of(pod("a")), desired_states.pod_addresses(desired, ATTACHED)))
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert set(after) == {"Node.n1.yaml", "Pod.default.a.yaml"}
    assert after["Node.n1.yaml"] == before["Node.n1.yaml"]
    assert after["Pod.default.a.yaml"] != before["Pod.default.a.yaml"]
