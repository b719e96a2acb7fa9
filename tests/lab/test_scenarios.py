"""Reading scenarios: the format, the warnings, and the errors."""

from __future__ import annotations

import pytest

from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol
from windlass.lab.scenarios.scenario_files import ScenarioError

NODE = """
apiVersion: v1
kind: Node
metadata: {name: win-1}
spec: {podCIDRs: [172.16.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.176.25.10}]}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec: {nodeName: win-1, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
---
"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: windlass-config, namespace: kube-system}
data: {windlass.yaml: "trafficMode: MODE"}
"""
# Everything that the format knows, in one file
EVERYTHING = """
kind: List
apiVersion: v1
items:
- apiVersion: v1
  kind: Node
  metadata: {name: win-1, labels: {topology.kubernetes.io/zone: a}, creationTimestamp: 2024-05-01T10:00:00Z}
  spec: {podCIDRs: [172.16.1.0/24, "fd01::/64"]}
  status:
    addresses:
    - {type: Hostname, address: win-1}
    - {type: InternalIP, address: 10.176.25.10}
    - {type: InternalIP, address: "fd10::10"}
    - {type: InternalIP, address: 10.176.99.10}
    - {type: ExternalIP, address: 203.0.113.10}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-0, namespace: default, labels: {app: web}}
  spec:
    nodeName: win-1
    containers:
    - ports:
      - {name: http, containerPort: 8080}
      - {containerPort: 53, protocol: UDP}
      - {containerPort: 99, protocol: SCTP}
  status: {podIPs: [{ip: 172.16.1.7}, {ip: "fd01::7"}], conditions: [{type: Ready, status: "True"}]}
- apiVersion: v1
  kind: Service
  metadata: {name: web}
  spec:
    type: LoadBalancer
    clusterIPs: [10.96.0.10, "fd96::10"]
    externalIPs: [198.51.100.7]
    selector: {app: web}
    ports: [{name: http, port: 80, targetPort: http, nodePort: 30080}]
  status: {loadBalancer: {ingress: [{ip: 192.0.2.7}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-x, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: []
---
apiVersion: v1
kind: ConfigMap
metadata: {name: windlass-config, namespace: kube-system}
data: {windlass.yaml: "trafficMode: hybrid"}
---
apiVersion: windlass.dev/v1alpha1
kind: ExternalHost
metadata: {name: client}
spec: {addresses: [10.176.26.36], ports: [{port: 80, protocol: TCP}]}
---
kind: Probe
metadata: {name: service, labels: {seed: "000"}}
spec:
  from: {node: win-1}
  to: {service: default/web, port: http, family: IPv6}
  bytes: 0
  sourceAddress: null
  hold: true
  rate: 0
  expect:
    {outcome: Connected, backends: [default/web-0], sticky: true, clientAddress: Gateway, maxGapMilliseconds: 200}
---
kind: Probe
metadata: {name: node-port}
spec: {from: {externalHost: client}, to: {nodePort: default/web, port: 80, node: win-1, address: 10.176.99.10}}
---
kind: Probe
metadata: {name: load-balancer}
spec:
  from: {externalHost: client}
  to: {loadBalancer: default/web, port: http, node: win-1}
  rate: 10
  expect: {failures: 3}
---
kind: Probe
metadata: {name: external-ip}
spec: {from: {pod: default/web-0}, to: {externalIP: default/web, port: http}}
---
kind: Probe
metadata: {name: pod}
spec:
  from: {pod: default/web-0}
  to: {pod: default/web-0, port: 99}
  protocol: SCTP
  connections: 3
  sourceAddress: 10.0.0.1
---
kind: Probe
metadata: {name: address}
spec: {from: {pod: default/web-0}, to: {address: 10.176.26.36}, protocol: ICMP, expect: {outcome: Timeout}}
---
kind: Action
metadata: {name: restart}
spec: {restartAgent: win-1}
---
kind: Action
metadata: {name: api}
spec: {stopAPIServer: true}
"""


@pytest.fixture
def failure(read):
    def one(*steps):
        with pytest.raises(ScenarioError) as error:
            read(*steps)
        return str(error.value)

    return one


def test_everything_in_the_format_is_understood(read):
    scenario = read(EVERYTHING)
    (step,) = scenario.steps
    assert scenario.warnings == ()
    assert [probe.name for probe in step.probes] == [
        "service", "node-port", "load-balancer", "external-ip", "pod", "address",
    ]  # fmt: skip
    assert [action.spec.verb for action in step.actions] == ["restartAgent", "stopAPIServer"]
    ((_, desired),) = scenario.states()
    node = desired.nodes["win-1"]
    assert [str(ip) for ip in node.addresses.values()] == ["10.176.25.10", "fd10::10"]
    assert [str(ip) for ip in node.other_addresses] == ["10.176.99.10", "203.0.113.10"]
    assert desired.traffic_mode.value == "hybrid"


def test_a_probe_has_defaults(read):
    (step,) = read(
        NODE + "kind: Probe\nmetadata: {name: p}\nspec: {from: {node: win-1}, to: {address: 1.2.3.4, port: 5}}"
    ).steps
    spec = step.probes[0].spec
    assert (spec.protocol, spec.connections, spec.expect.outcome) == (ProbeProtocol.TCP, 10, ProbeOutcome.CONNECTED)


def test_later_steps_add_replace_and_delete(read):
    replaced = POD.replace("app: web", "app: other")
    deleted = "kind: Delete\nmetadata: {name: d}\nspec: {kind: Pod, name: default/web-0}\n"
    states = [desired for _, desired in read(NODE + POD, replaced, deleted).states()]
    assert [len(desired.pods) for desired in states] == [1, 1, 0]
    assert states[1].pods["default/web-0"].metadata.labels == {"app": "other"}


def test_a_pod_that_has_ended_or_is_not_scheduled_does_not_run(read):
    over = POD + "status: {phase: Succeeded}\n"
    pending = "apiVersion: v1\nkind: Pod\nmetadata: {name: pending}\n"
    ((_, desired),) = read(NODE + over.replace("---\nstatus", "status") + "---\n" + pending).states()
    assert desired.pods == {}
    assert len(desired.objects) == 3


def test_an_unknown_kind_is_a_warning(read):
    scenario = read(NODE + "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n")
    assert scenario.warnings == ("1.yaml: Deployment web (apps/v1) is ignored: this kind is not read",)


class TestFolders:
    def test_a_file_is_a_scenario(self, tmp_path):
        file = tmp_path / "one.yaml"
        file.touch()
        assert scenario_files.find(file) == (scenario_files.ScenarioFiles("one", (file,)),)

    def test_a_folder_of_yaml_files_is_a_scenario_with_its_steps_in_order_of_name(self, tmp_path):
        for name in ("20-b.yml", "10-a.yaml", "README.md"):
            (tmp_path / name).touch()
        assert scenario_files.find_one(tmp_path).files == (tmp_path / "10-a.yaml", tmp_path / "20-b.yml")

    def test_a_folder_is_searched_for_scenarios_to_any_depth(self, tmp_path):
        for folder in ("b", "a/deep"):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "1.yaml").touch()
        assert [found.name for found in scenario_files.find(tmp_path)] == ["a/deep", "b"]

    def test_an_empty_path_is_an_error(self, tmp_path):
        with pytest.raises(ScenarioError, match="there is no YAML file"):
            scenario_files.find(tmp_path)
        with pytest.raises(ScenarioError, match="no such file or directory"):
            scenario_files.find(tmp_path / "nowhere")


def probe(spec):
    return f"{NODE}kind: Probe\nmetadata: {{name: p}}\nspec: {{{spec}}}\n"


FROM = "from: {node: win-1}"
TO = "to: {address: 1.2.3.4, port: 80}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: b: c", "1.yaml: line 1, column 5: is not YAML: mapping values are not allowed in this context"),
        ("- 1", "1.yaml: has a list instead of an object with apiVersion and kind"),
        ("metadata: {name: x}", "1.yaml: an object x, kind: is missing"),
        ("apiVersion: v1\nkind: Pod", "1.yaml: Pod without a name, metadata: is missing"),
        (
            NODE.replace("172.16.1.0/24", "172.16.1.0/33"),
            "Node win-1, spec.podCIDRs[0]: '172.16.1.0/33' is not an IP network",
        ),
        (NODE.replace("podCIDRs: [172.16.1.0/24]", ""), "Node win-1, spec.podCIDRs: is missing"),
        (NODE.replace("InternalIP", "ExternalIP"), "Node win-1, status.addresses: has no InternalIP"),
        (
            NODE.replace("10.176.25.10", "10.176.25"),
            "Node win-1, status.addresses[0].address: '10.176.25' is not an IP address",
        ),
        (NODE.replace("10.176.25.10", "10.176.25.1"), "1.yaml: Node win-1: 10.176.25.1 belongs to the router"),
        (
            NODE + NODE.replace("win-1", "win-2"),
            "1.yaml: Node win-2: 10.176.25.10 is already the address of Node win-1",
        ),
        (POD, "1.yaml: Pod default/web-0, spec.nodeName: there is no Node win-1"),
        (
            NODE + POD.replace("8080", "http"),
            "web-0, spec.containers[0].ports[0].containerPort: expected a number, got text",
        ),
        (NODE + POD.replace("8080", "0"), "spec.containers[0].ports[0].containerPort: 0 is not a port"),
        (
            NODE + POD.replace("8080", "80, protocol: TPC"),
            "spec.containers[0].ports[0].protocol: invalid enum value 'TPC'",
        ),
        (NODE + POD.replace("8080", "80, protocol: ICMP"), "spec.containers[0].ports[0].protocol: ICMP has no ports"),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: n}\nspec: {clusterIPs: [x]}",
            "1.yaml: Service n/s, spec.clusterIPs[0]: 'x' is not an IP address",
        ),
        (
            CONFIG.replace("MODE", "magic"),
            "ConfigMap kube-system/windlass-config, data[windlass.yaml]: trafficMode: 'magic' is not one of",
        ),
        ("kind: ExternalHost\nmetadata: {name: h}\nspec: {addresses: []}", "ExternalHost h, spec.addresses: is empty"),
        (
            "kind: ExternalHost\nmetadata: {name: h}\nspec: {addresses: [10.0.0.5], mtu: 100}",
            "ExternalHost h, spec.mtu: 100 is outside 1280-1500",
        ),
        (
            NODE + "---\nkind: ExternalHost\nmetadata: {name: h}\nspec: {addresses: [10.176.25.5], mtu: 1280}",
            "ExternalHost h: a host with spec.mtu has its own router, so no other machine may be in 10.176.25.0/24",
        ),
        (probe(FROM), "1.yaml: Probe p, spec.to: is missing"),
        (probe(f"{FROM}, {TO}, prot: TCP"), "1.yaml: Probe p, spec.prot: there is no such field"),
        (
            probe(f"{FROM}, to: {{address: 1.2.3.4}}"),
            "spec.to.port: is missing; only ICMP has no ports, this is TCP",
        ),
        (
            probe("from: {node: win-1, pod: a/b}, " + TO),
            "Probe p, spec.from: has node and pod of node, pod, externalHost",
        ),
        (probe("from: {pod: web}, " + TO), "Probe p, spec.from.pod: 'web' is not of the form namespace/name"),
        (
            probe(f"{FROM}, to: {{port: 80}}"),
            "Probe p, spec.to: has none of service, nodePort, loadBalancer, externalIP, pod",
        ),
        (
            probe(f"{FROM}, to: {{nodePort: a/b, port: 80}}"),
            "spec.to.node: is missing; a NodePort probe names the Node to connect to",
        ),
        (
            probe(f"{FROM}, to: {{pod: a/b, port: 80, node: win-1}}"),
            "spec.to.node: applies only to service, nodePort, loadBalancer and externalIP",
        ),
        (
            probe(f"{FROM}, to: {{address: 1.2.3.4, port: 80, family: IPv4}}"),
            "spec.to.family: does not apply to an address, which has its own family",
        ),
        (probe(f"{FROM}, {TO}, connections: 0"), "spec.connections: 0 is too few"),
        (probe(f"{FROM}, {TO}, bytes: -1"), "spec.bytes: must not be negative"),
        (
            probe(f"{FROM}, {TO}, hold: true, rate: 5"),
            "spec.rate: a probe either holds one connection or opens new ones",
        ),
        (
            probe(f"{FROM}, {TO}, hold: true, sourceAddress: 1.2.3.4"),
            "spec.sourceAddress: a spoofed packet gets no answer",
        ),
        (
            probe(f"{FROM}, {TO}, expect: {{maxGapMilliseconds: 5}}"),
            "spec.expect.maxGapMilliseconds: needs hold: true",
        ),
        (probe(f"{FROM}, {TO}, expect: {{failures: 5}}"), "spec.expect.failures: needs a rate"),
        (
            probe(f"{FROM}, {TO}, expect: {{clientAddress: me}}"),
            "spec.expect.clientAddress: 'me' is neither an IP address nor one of",
        ),
        (
            probe(f"{FROM}, {TO}, onWindowsHost: {{why: x, expect: {{outcome: Refused}}}}"),
            "spec.onWindowsHost: needs to.node",
        ),
        (
            probe(f"{FROM}, {TO}, onWindowsHost: {{expect: {{}}}}"),
            "spec.onWindowsHost.why: is missing",
        ),
        (probe(f"{FROM}, {TO}, expect: {{outcome: Maybe}}"), "spec.expect.outcome: invalid enum value 'Maybe'"),
        (probe("from: {node: win-9}, " + TO), "1.yaml: Probe p, spec.from.node: there is no Node win-9"),
        (probe("from: {externalHost: x}, " + TO), "spec.from.externalHost: there is no ExternalHost x"),
        (
            probe(f"{FROM}, {TO}, sourceAddress: 'fd00::1'"),
            "spec.sourceAddress: fd00::1 is not IPv4, but the target is",
        ),
        (probe(f"{FROM}, to: {{pod: default/x, port: 1}}"), "spec.to.pod: there is no running Pod default/x"),
        (probe(f"{FROM}, to: {{service: default/x, port: 1}}"), "spec.to.service: there is no Service default/x"),
        (
            probe(f"{FROM}, {TO}") + "---" + probe(f"{FROM}, {TO}"),
            "1.yaml: Probe p: this step has 2 probes of this name",
        ),
        ("kind: Action\nmetadata: {name: a}\nspec: {}", "Action a, spec.nothing: an Action does exactly one thing"),
        (
            "kind: Action\nmetadata: {name: a}\nspec: {stopAgent: x}",
            "1.yaml: Action a, spec.stopAgent: there is no Node x",
        ),
        (
            "kind: Delete\nmetadata: {name: d}\nspec: {kind: Service, name: web}",
            "1.yaml: Delete d, spec.name: no earlier step has a Service web",
        ),
    ],
)
def test_an_error_names_file_object_and_field(failure, text, sentence):
    assert sentence in failure(text)


def test_all_problems_of_a_scenario_are_reported_at_once(failure):
    lines = failure(probe(FROM), "- 1").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["1.yaml", "2.yaml"]
