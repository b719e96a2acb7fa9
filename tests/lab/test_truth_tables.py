"""A truth table is expanded to a probe for each cell."""

from __future__ import annotations

import pytest
import yaml

from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.expansions import AS_WRITTEN, ExpansionError, Variant, expand
from windlass.lab.scenarios.objects import IPFamily

WRITTEN = """
kind: TruthTable
metadata: {name: t, labels: {seed: "004"}}
spec:
  ends: {outside: {externalHost: client, address: 203.0.113.9}}
  table: |
    -        x/a  x/b:UDP/53  outside
    x/a      #    X           .
    outside  R    .           #
"""
BY_DEFAULT = """
kind: TruthTable
metadata: {name: t}
spec:
  from: [x/a, y/a]
  to: [x/a, y/a, y/b]
  ports: [80, 81]
  default: X
  except:
  - {from: ["*"], to: [y/*], ports: [81]}
  - {from: [x/a], to: [x/a], cell: "#"}
"""


def probes(text: str, variant: Variant = AS_WRITTEN) -> dict[str, dict]:
    return {one["metadata"]["name"]: one["spec"] for one in expand(yaml.safe_load_all(text), variant)}


def outcomes(text: str) -> dict[str, str]:
    return {name: spec["expect"]["outcome"] for name, spec in probes(text).items()}


def test_each_cell_is_a_probe_with_one_connection():
    found = probes(WRITTEN)
    assert found["t-x-a-to-x-b"] == {
        "from": {"pod": "x/a"},
        "to": {"pod": "x/b", "port": 53},
        "protocol": "UDP",
        "connections": 1,
        "expect": {"outcome": "Timeout"},
    }
    assert found["t-outside-to-x-b"]["expect"] == {"outcome": "Connected", "backends": ["x/b"]}
    assert found["t-x-a-to-outside"]["to"] == {"address": "203.0.113.9", "port": 80}
    assert found["t-outside-to-x-a"]["from"] == {"externalHost": "client"}
    assert found["t-outside-to-x-a"]["expect"] == {"outcome": "Refused"}
    assert len(found) == 4, "a cell with # is not asked"


def test_its_labels_are_those_of_every_probe():
    assert {one["metadata"]["labels"]["seed"] for one in expand(yaml.safe_load_all(WRITTEN), AS_WRITTEN)} == {"004"}


def test_a_default_with_exceptions_equals_the_table_with_all_cells():
    table = """
    -    x/a:80 x/a:81 y/a:80 y/a:81 y/b:80 y/b:81
    x/a  #      #      X      .      X      .
    y/a  X      X      X      .      X      .
    """
    written = yaml.safe_dump({"kind": "TruthTable", "metadata": {"name": "t"}, "spec": {"table": table}})
    assert probes(BY_DEFAULT) == probes(written)


def test_ports_and_families_multiply_cells():
    spec = "{from: [x/a], to: [x/b], default: '.', ports: [http, UDP/53, ICMP], families: [IPv4, IPv6]}"
    found = probes(f"kind: TruthTable\nmetadata: {{name: t}}\nspec: {spec}")
    assert [*found] == [
        f"t-x-a-to-x-b-{port}{family}" for port in ("http", "udp-53", "icmp") for family in ("", "-ipv6")
    ]
    assert found["t-x-a-to-x-b-icmp-ipv6"]["to"] == {"pod": "x/b", "family": "IPv6"}
    one = Variant("encap", (IPFamily.IPV6,))
    assert len(probes(f"kind: TruthTable\nmetadata: {{name: t}}\nspec: {spec}", one)) == 3


def test_a_service_and_a_node_port_are_columns_too():
    ends = "{web: {service: x/web}, np: {nodePort: x/web, node: n}, node: {node: n, address: 10.0.0.1, port: 10250}}"
    spec = f"{{from: [x/a, node], to: [web, np, node], default: '.', ports: [http], ends: {ends}}}"
    found = probes(f"kind: TruthTable\nmetadata: {{name: t}}\nspec: {spec}")
    assert found["t-x-a-to-web"]["to"] == {"service": "x/web", "port": "http"}
    assert found["t-x-a-to-np"]["to"] == {"nodePort": "x/web", "node": "n", "port": "http"}
    assert found["t-x-a-to-node"]["to"] == {"address": "10.0.0.1", "port": 10250}
    assert found["t-node-to-web"]["from"] == {"node": "n"}
    assert "backends" not in found["t-x-a-to-web"]["expect"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            '{table: "- x/a\\n x/b . ."}',
            r"TruthTable t, spec.table: row x/b has 2 cells, and the header names 1 columns",
        ),
        ('{table: "- x/a\\n x/b ?"}', r"spec.table: row x/b, column x/a: '\?' is none of"),
        ('{table: "- x/a\\n outside ."}', r"spec.ends: outside is missing"),
        ("{table: '- x/a'}", r"spec.table: has no rows"),
        ("{from: [x/a], to: [x/b], default: Y}", r"'Y' is not a cell; cells are"),
        ("{default: X}", r"spec.from, to: a table with a default names its rows"),
        (
            "{from: [x/a], to: [x/b], default: X, except: [{from: [y/a], to: ['*']}]}",
            r"spec.except\[0\]: matches no cell",
        ),
        ("{table: '- x/a', default: X}", r"exactly one of the two"),
        ("{from: [x/a], to: [x/b], default: X, ports: [TPC/80]}", r"spec.ports: 'TPC/80': TPC is none of"),
        ("{from: [s], to: [x/b], default: X, ends: {s: {service: x/s}}}", r"spec.ends.s: a row needs one of"),
        ("{from: [x/a], to: [s], default: X, ends: {s: {externalHost: h}}}", r"spec.ends.s: a column needs a target"),
    ],
)
def test_a_malformed_table_is_named(spec: str, sentence: str):
    with pytest.raises(ExpansionError, match=sentence):
        probes(f"kind: TruthTable\nmetadata: {{name: t}}\nspec: {spec}")


def test_it_is_read_as_part_of_a_scenario(tmp_path):
    (tmp_path / "00.yaml").write_text(
        """
apiVersion: v1
kind: Node
metadata: {name: n}
spec: {podCIDRs: [172.16.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x}
spec: {nodeName: n, containers: [{ports: [{containerPort: 80}]}]}
---
apiVersion: windlass.dev/v1alpha1
kind: TruthTable
metadata: {name: t}
spec: {from: [x/a], to: [x/a], default: "."}
"""
    )
    [step] = scenario_files.find_one(tmp_path).read().steps
    assert [probe.name for probe in step.probes] == ["t-x-a-to-x-a"]
