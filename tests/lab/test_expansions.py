"""A Matrix and a table of Probes say in a few lines what the plain format says in many."""

from __future__ import annotations

import pytest
import yaml

from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.expansions import AS_WRITTEN, ExpansionError, Variant, expand, variants
from windlass.lab.scenarios.objects import IPFamily

IPV4, IPV6 = (IPFamily.IPV4,), (IPFamily.IPV6,)


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def expanded(text, variant=AS_WRITTEN, names=frozenset()):
    return [*expand(documents(text), variant, frozenset(names))]


def specs(text, variant=AS_WRITTEN, names=frozenset()):
    return {document["metadata"]["name"]: document["spec"] for document in expanded(text, variant, names)}


TABLE = """
kind: Probes
metadata: {name: pods, labels: {seed: "000"}}
spec:
  share: {from: {pod: default/client}, expect: {clientAddress: Preserved}}
  each:
    near: {to: {pod: default/near, port: 80}, expect: {backends: [default/near]}}
    far: {from: {node: node-1}, to: {pod: default/far, port: 80}, expect: {clientAddress: Gateway}}
"""


class TestTables:
    def test_a_row_is_a_probe_that_adds_to_or_replaces_the_shared_fields(self):
        assert specs(TABLE) == {
            "near": {
                "from": {"pod": "default/client"},
                "to": {"pod": "default/near", "port": 80},
                "expect": {"clientAddress": "Preserved", "backends": ["default/near"]},
            },
            "far": {
                "from": {"node": "node-1"},
                "to": {"pod": "default/far", "port": 80},
                "expect": {"clientAddress": "Gateway"},
            },
        }

    def test_its_labels_are_those_of_every_row(self):
        assert [document["metadata"]["labels"] for document in expanded(TABLE)] == [{"seed": "000"}] * 2

    def test_protocols_and_families_multiply_a_row_and_all_but_the_first_are_named_at_the_end(self):
        row = "{to: {service: default/web, port: {TCP: http, UDP: dns}}, protocols: [TCP, UDP], families: [IPv4, IPv6]}"
        found = specs(f"kind: Probes\nspec: {{each: {{web: {row}}}}}")
        assert found == {
            "web": {"to": {"service": "default/web", "port": "http"}},
            "web-ipv6": {"to": {"service": "default/web", "port": "http", "family": "IPv6"}},
            "web-udp": {"to": {"service": "default/web", "port": "dns"}, "protocol": "UDP"},
            "web-udp-ipv6": {"to": {"service": "default/web", "port": "dns", "family": "IPv6"}, "protocol": "UDP"},
        }

    def test_a_name_can_have_placeholders_for_protocol_and_family(self):
        row = "{to: {pod: default/web, port: 80}, protocols: [TCP, UDP], families: [IPv4, IPv6]}"
        names = [*specs(f'kind: Probes\nspec: {{each: {{"{{protocol}}-to-web": {row}}}}}')]
        assert names == ["tcp-to-web", "tcp-to-web-ipv6", "udp-to-web", "udp-to-web-ipv6"]
        names = [*specs(f'kind: Probes\nspec: {{each: {{"{{family}}-to-web": {row}}}}}')]
        assert names == ["ipv4-to-web", "ipv6-to-web", "ipv4-to-web-udp", "ipv6-to-web-udp"]

    def test_a_target_of_its_own_for_each_family_needs_no_family(self):
        row = "{to: {loadBalancer: {IPv4: default/web, IPv6: default/web-6}, port: 80}, families: [IPv4, IPv6]}"
        assert specs(f"kind: Probes\nspec: {{each: {{web: {row}}}}}") == {
            "web": {"to": {"loadBalancer": "default/web", "port": 80}},
            "web-ipv6": {"to": {"loadBalancer": "default/web-6", "port": 80}},
        }

    def test_a_node_port_without_address_is_probed_at_the_node_ip_of_each_family(self):
        row = "{to: {nodePort: default/web, port: 80, node: n1}, families: [IPv4, IPv6]}"
        to = {"nodePort": "default/web", "port": 80, "node": "n1"}
        assert specs(f"kind: Probes\nspec: {{each: {{web: {row}}}}}") == {
            "web": {"to": to},
            "web-ipv6": {"to": {**to, "family": "IPv6"}},
        }

    def test_a_node_port_with_an_address_for_each_family_needs_no_family(self):
        row = "{to: {nodePort: default/web, port: 80, node: n1, address: {IPv4: 10.0.0.2, IPv6: fd00::2}},"
        found = specs(f"kind: Probes\nspec: {{each: {{web: {row} families: [IPv4, IPv6]}}}}}}")
        assert [spec["to"].get("address") for spec in found.values()] == ["10.0.0.2", "fd00::2"]
        assert all("family" not in spec["to"] for spec in found.values())

    def test_a_choice_without_a_value_omits_the_field(self):
        row = "{to: {pod: default/web, port: {TCP: 80}}, protocols: [TCP, ICMP]}"
        assert specs(f"kind: Probes\nspec: {{each: {{web: {row}}}}}") == {
            "web": {"to": {"pod": "default/web", "port": 80}},
            "web-icmp": {"to": {"pod": "default/web"}, "protocol": "ICMP"},
        }

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            (
                "kind: Probes\nmetadata: {name: t}\nspec: {each: [a]}",
                "Probes t, spec: each: expected an object, got a list",
            ),
            (
                "kind: Probes\nmetadata: {name: t}\nspec: {rows: {}}",
                "Probes t, spec: object contains unknown field `rows`",
            ),
            (
                "kind: Probes\nspec: {each: {a: {protocols: TCP}}}",
                "Probe a, spec.protocols: 'TCP' is not a list of names",
            ),
        ],
    )
    def test_an_error_names_what_is_malformed(self, text, complaint):
        with pytest.raises(ExpansionError, match=complaint):
            expanded(text)


NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]}
status: {addresses: [{type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"}]}
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilyPolicy: RequireDualStack,
       ipFamilies: [IPv4, IPv6], externalIPs: [192.0.2.1, "2001:db8::1"], ports: [{port: 80}]}
"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: windlass-config, namespace: kube-system}
data: {windlass.yaml: "tunnelType: vxlan"}
"""


class TestVariants:
    def test_a_matrix_names_its_variants(self):
        matrix = "kind: Matrix\nspec: {variants: {encap: {trafficMode: encap}, six: {families: [IPv6], windows: [a]}}}"
        assert variants(documents(matrix)) == (
            Variant("encap", name="encap"),
            Variant(families=IPV6, windows=("a",), name="six"),
        )

    def test_the_traffic_mode_is_set_in_the_agents_configuration(self):
        (document,) = expanded(CONFIG, Variant("hybrid"))
        assert yaml.safe_load(document["data"]["windlass.yaml"]) == {"tunnelType": "vxlan", "trafficMode": "hybrid"}

    def test_the_traffic_mode_is_set_where_the_scenario_has_no_configuration(self):
        """Earlier, two scenarios that asked for noEncap ran in encap mode."""
        document, _ = expanded(f"kind: Matrix\nspec: {{variants: {{a: {{}}}}}}\n---{NODE}", Variant("noEncap"))
        assert document["metadata"] == {"name": "windlass-config", "namespace": "kube-system"}
        assert yaml.safe_load(document["data"]["windlass.yaml"]) == {"trafficMode": "noEncap"}

    def test_nodes_are_given_their_operating_system(self):
        (document,) = expanded(NODE, Variant(windows=("node-1",)))
        assert document["metadata"]["labels"] == {"kubernetes.io/os": "windows"}
        (document,) = expanded(NODE, Variant(windows=()))
        assert document["metadata"]["labels"] == {"kubernetes.io/os": "linux"}

    def test_one_family_leaves_the_other_out_of_every_object(self):
        node, service = expanded(f"{NODE}---{SERVICE}", Variant(families=IPV6))
        assert node["spec"] == {"podCIDRs": ["fd00:172:16:1::/64"]}
        assert [address["address"] for address in node["status"]["addresses"]] == ["fd00:10:176:25::11"]
        assert service["spec"] == {
            "clusterIP": "fd00:10:96::10",
            "clusterIPs": ["fd00:10:96::10"],
            "ipFamilies": ["IPv6"],
            "externalIPs": ["2001:db8::1"],
            "ports": [{"port": 80}],
        }

    def test_routes_are_of_the_variants_families(self):
        routes = "---\n".join(
            f"kind: Action\nmetadata: {{name: r}}\nspec: {{addRoute: {{node: a, to: '{to}'}}}}\n"
            for to in ("192.0.2.0/24", "2001:db8::/64")
        )
        (route,) = expanded(routes, Variant(families=IPV6))
        assert route["spec"]["addRoute"]["to"] == "2001:db8::/64"

    def test_probes_are_of_the_variants_families(self):
        row = "{to: {address: {IPv4: 10.0.0.1, IPv6: 'fd00::1'}, port: 80}, families: [IPv4, IPv6]}"
        table = f"kind: Probes\nspec: {{each: {{web: {row}, old: {{to: {{address: 10.0.0.2, port: 80}}}}}}}}"
        assert specs(table, Variant(families=IPV6)) == {"web": {"to": {"address": "fd00::1", "port": 80}}}
        assert [*specs(table, Variant(families=IPV4))] == ["web", "old"]

    def test_a_row_can_be_for_some_variants_and_differ_by_variant(self):
        seen = "{encap: Gateway, no-encap: Node}"
        table = f"kind: Probes\nspec: {{each: {{a: {{expect: {{clientAddress: {seen}}}}}, b: {{only: [encap]}}}}}}"
        names = ("encap", "no-encap")
        assert specs(table, Variant(name="encap"), names) == {"a": {"expect": {"clientAddress": "Gateway"}}, "b": {}}
        assert specs(table, Variant(name="no-encap"), names) == {"a": {"expect": {"clientAddress": "Node"}}}


class TestFolders:
    MATRIX = "kind: Matrix\nspec: {variants: {encap: {trafficMode: encap}, no-encap: {trafficMode: noEncap}}}\n---\n"

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "web"
        folder.mkdir()
        (folder / "00-cluster.yaml").write_text(f"{self.MATRIX}{CONFIG}---{NODE}")
        return folder

    def test_every_variant_is_a_scenario_of_its_own(self, folder):
        found = scenario_files.find(folder.parent)
        assert [one.name for one in found] == ["web/encap", "web/no-encap"]
        modes = [desired.traffic_mode.value for one in found for _, desired in one.read().states()]
        assert modes == ["encap", "noEncap"]

    def test_a_path_can_name_one_variant(self, folder):
        assert scenario_files.find_one(folder / "no-encap").name == "web/no-encap"
        with pytest.raises(scenario_files.ScenarioError, match="no such file or directory"):
            scenario_files.find(folder / "hybrid")
        with pytest.raises(
            scenario_files.ScenarioError, match="contains 2 scenarios; name one of web/encap, web/no-encap"
        ):
            scenario_files.find_one(folder)

    def test_a_malformed_matrix_is_an_error_when_it_is_read(self, folder):
        (folder / "00-cluster.yaml").write_text(
            "kind: Matrix\nmetadata: {name: m}\nspec: {variants: {a: {mode: encap}}}\n"
        )
        with pytest.raises(
            scenario_files.ScenarioError, match=r"00-cluster.yaml: Matrix m, spec: variants.*: object contains unknown"
        ):
            scenario_files.find_one(folder).read()
