"""Targets of probes are resolved to addresses and ports, and the expected client address to an address."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
import yaml
from msgspec import convert

from windlass.lab.scenarios import desired_states, targets
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.directives import ExternalHost, Probe
from windlass.lab.scenarios.objects import KUBERNETES_KINDS, KubernetesObject

OBJECTS = """
- {apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.1.0/24, "fd01:1::/64"]},
   status: {addresses: [{type: InternalIP, address: 10.0.0.11}, {type: InternalIP, address: "fd00::11"},
                        {type: InternalIP, address: 10.9.0.11}]}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.1.2.0/24]},
   status: {addresses: [{type: InternalIP, address: 10.0.0.12}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{ports: [
   {name: dns, containerPort: 53, protocol: UDP}, {name: dns, containerPort: 5353, protocol: TCP}]}]},
   status: {podIPs: [{ip: 10.1.1.5}, {ip: "fd01:1::5"}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: host}, spec: {nodeName: n2, hostNetwork: true}}
- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIPs: [10.96.0.1, "fd96::1"],
   externalIPs: [198.51.100.1], ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]},
   status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}
"""


@pytest.fixture
def desired():
    objects = [
        KubernetesObject(raw["kind"], convert(raw, KUBERNETES_KINDS[raw["apiVersion"], raw["kind"]]), raw)
        for raw in yaml.safe_load(OBJECTS)
    ]
    host = convert({"metadata": {"name": "out"}, "spec": {"addresses": ["10.5.0.5"]}}, ExternalHost)
    return DesiredState().after(objects, [host], [])


@pytest.fixture
def resolve(desired):
    def one(to, source="pod: default/a", protocol="TCP"):
        text = f"{{metadata: {{name: p}}, spec: {{from: {{{source}}}, to: {{{to}}}, protocol: {protocol}}}}}"
        attached = {"default/a": (ip_address("10.1.1.5"), ip_address("fd01:1::5"))}
        found = targets.resolve(
            convert(yaml.safe_load(text), Probe), desired, desired_states.pod_addresses(desired, attached)
        )
        return str(found.address), found.port, found.entry, found.via

    return one


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("service: default/web, port: http", ("10.96.0.1", 80, "n1", None)),
        ("service: default/web, port: 81", ("10.96.0.1", 81, "n1", None)),  # an unused port is worth a probe
        ("service: default/web, port: http, family: IPv6", ("fd96::1", 80, "n1", None)),
        ("nodePort: default/web, port: http, node: n2", ("10.0.0.12", 30080, "n1", None)),
        ("nodePort: default/web, port: 30080, node: n2", ("10.0.0.12", 30080, "n1", None)),
        ("nodePort: default/web, port: http, node: n1, family: IPv4", ("10.0.0.11", 30080, "n1", None)),
        ("nodePort: default/web, port: http, node: n1, family: IPv6", ("fd00::11", 30080, "n1", None)),
        ("nodePort: default/web, port: 80, node: n1, address: 127.0.0.1", ("127.0.0.1", 30080, "n1", None)),
        ("loadBalancer: default/web, port: http", ("192.0.2.1", 80, "n1", None)),
        ("externalIP: default/web, port: http, node: n2", ("198.51.100.1", 80, "n1", None)),
        ("pod: default/a, port: dns", ("10.1.1.5", 5353, "n1", None)),
        ("pod: default/a, port: 9, family: IPv6", ("fd01:1::5", 9, "n1", None)),
        ("pod: default/host, port: 9", ("10.0.0.12", 9, "n1", None)),
        ("address: 1.1.1.1, port: 9", ("1.1.1.1", 9, "n1", None)),
    ],
)
def test_packets_of_a_pod_enter_at_its_own_node(resolve, to, expected):
    assert resolve(to) == expected


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("nodePort: default/web, port: http, node: n2", ("10.0.0.12", 30080, "n2", None)),
        ("loadBalancer: default/web, port: http, node: n2", ("192.0.2.1", 80, "n2", "n2")),
        ("externalIP: default/web, port: http", ("198.51.100.1", 80, "n1", "n1")),
        ("pod: default/a, port: 1", ("10.1.1.5", 1, "n1", None)),
        ("address: 10.9.0.11, port: 1", ("10.9.0.11", 1, "n1", None)),
        ("address: 10.1.2.77, port: 1", ("10.1.2.77", 1, "n2", None)),
        ("address: 8.8.8.8, port: 1", ("8.8.8.8", 1, None, None)),
    ],
)
def test_packets_from_outside_enter_at_the_addressed_node(resolve, to, expected):
    assert resolve(to, source="externalHost: out") == expected


def test_ports_are_of_the_probes_protocol(resolve):
    assert resolve("pod: default/a, port: dns", protocol="UDP")[1] == 53
    assert resolve("service: default/web, port: dns", protocol="UDP")[1] == 53
    assert resolve("pod: default/a, port: dns", protocol="ICMP")[1] == 0


@pytest.mark.parametrize(
    ("to", "sentence"),
    [
        ("service: default/web, port: https", "spec.to.port: Service default/web has no TCP port named 'https'"),
        ("nodePort: default/web, port: dns, node: n1", "has no TCP port named 'dns'"),
        ("pod: default/host, port: 1, family: IPv6", "spec.to.pod: default/host has no IPv6 address of this kind"),
        ("nodePort: default/web, port: http, node: n2, family: IPv6", "spec.to.family: Node n2 has no IPv6 Node IP"),
        ("pod: default/a, port: ssh", "spec.to.port: Pod default/a has no TCP port named 'ssh'"),
        ("address: 1.1.1.1, port: ssh", "spec.to.port: 'ssh' is a name; an address needs a port number"),
    ],
)
def test_an_unknown_target_is_an_error(resolve, to, sentence):
    with pytest.raises(targets.UnresolvedError, match=sentence.replace(".", r"\.")):
        resolve(to)


def test_a_service_port_without_node_port(resolve):
    with pytest.raises(targets.UnresolvedError, match="has no nodePort"):
        resolve("nodePort: default/web, port: dns, node: n1", protocol="UDP")


@pytest.mark.parametrize(
    ("expected", "destination", "address"),
    [
        ("Gateway", ("10.96.0.1", "n1"), "10.1.1.1"),
        ("Gateway", ("fd96::1", "n1"), "fd01:1::1"),
        ("Node", ("10.96.0.1", "n2"), "10.0.0.12"),
        ("9.9.9.9", ("10.96.0.1", None), "9.9.9.9"),
    ],
)
def test_the_expected_client_address(desired, expected, destination, address):
    probe = convert(
        {
            "metadata": {"name": "p"},
            "spec": {
                "from": {"node": "n1"},
                "to": {"address": "1.1.1.1", "port": 1},
                "expect": {"clientAddress": expected},
            },
        },
        Probe,
    )
    ip, node = destination
    found = targets.seen_address(probe, targets.Destination(ip_address(ip), 1, node), desired)
    assert str(found) == address
