"""A folder of manifests as a source of the cluster; malformed parts are reported and the rest is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from platforms import not_on_windows
from windlass.cluster.changes import EVERYTHING, NOTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.manifests import Manifests, ManifestsMissing, revision_of
from windlass.cluster.objects import EndpointSlice, Node, Service


def node(name: str, cidr: str = "172.16.1.0/24") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDRs": [cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.176.25.11"}]},
    }


def service(name: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def endpoint_slice(name: str, *addresses: str) -> dict[str, object]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


def write(folder: Path, name: str, *documents: object) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump_all(documents))


def problems(cluster: Cluster) -> list[str]:
    return [str(problem) for problem in cluster.problems]


# Reading ----------------------------------------------------------------------------------------------------------


def test_every_node_of_every_file(tmp_path):
    write(tmp_path, "a.yaml", node("node-1"), node("node-2"))
    write(tmp_path, "deeper/b.yml", node("node-3"))
    (tmp_path / "c.json").write_text('{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-4"}}')
    cluster = Manifests(tmp_path).read()
    assert list(cluster.nodes) == ["node-1", "node-2", "node-4", "node-3"]
    assert cluster.problems == ()
    assert cluster.nodes["node-1"].pod_cidrs == ("172.16.1.0/24",)


def test_services_slices_and_service_cidrs(tmp_path):
    cidr = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}}
    write(tmp_path, "a.yaml", service("web", clusterIPs=["10.96.0.10"]), endpoint_slice("web", "172.16.1.5"))
    write(tmp_path, "b.yaml", cidr | {"spec": {"cidrs": ["10.96.0.0/16"]}}, node("web"))
    cluster = Manifests(tmp_path).read()
    assert cluster.problems == ()  # objects of different kinds may have the same name
    assert cluster.services["shop/web"].spec.cluster_ips == ("10.96.0.10",)
    assert cluster.slices["shop/web"].endpoints[0].addresses == ("172.16.1.5",)
    assert cluster.service_cidrs["kubernetes"].spec.cidrs == ("10.96.0.0/16",)
    assert set(cluster.nodes) == {"web"}


def test_kinds_of_the_same_name_in_other_groups_are_not_read(tmp_path):
    knative = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}}
    write(tmp_path, "a.yaml", knative)
    assert Manifests(tmp_path).read() == Cluster(revision_of(tmp_path))


def test_json_that_only_a_yaml_parser_accepts(tmp_path):
    """A comment, and two documents."""
    first, second = (json.dumps(node(name)) for name in ("node-1", "node-2"))
    (tmp_path / "a.json").write_text(f"# two of them\n{first}\n---\n{second}\n")
    assert set(Manifests(tmp_path).read().nodes) == {"node-1", "node-2"}


def test_times_that_yaml_parses_and_quoted_ones(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, creationTimestamp: 2024-05-05T10:00:00Z}\n---\n"
        "apiVersion: v1\nkind: Service\nmetadata: {name: b, creationTimestamp: '2024-05-05T10:00:00Z'}\n"
    )
    services = Manifests(tmp_path).read().services
    first, second = (services[f"default/{name}"].metadata.creation_timestamp for name in "ab")
    assert first == second is not None


def test_a_single_file(tmp_path):
    write(tmp_path, "cluster.yaml", node("node-1"))
    write(tmp_path, "other.yaml", node("node-2"))
    assert set(Manifests(tmp_path / "cluster.yaml").read().nodes) == {"node-1"}


def test_a_list_is_its_items(tmp_path):
    items = [node("node-1"), None, node("node-2")]
    write(tmp_path, "a.yaml", {"apiVersion": "v1", "kind": "List", "items": items})
    write(tmp_path, "b.yaml", {"apiVersion": "v1", "kind": "NodeList", "items": [node("node-3")]})
    write(tmp_path, "c.yaml", {"apiVersion": "v1", "kind": "List", "items": None})
    cluster = Manifests(tmp_path).read()
    assert set(cluster.nodes) == {"node-1", "node-2", "node-3"}


def test_unknown_kinds_are_no_problem(tmp_path):
    write(
        tmp_path, "a.yaml", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}, node("node-1")
    )
    cluster = Manifests(tmp_path).read()
    assert (set(cluster.nodes), cluster.problems) == ({"node-1"}, ())


@pytest.mark.parametrize("content", ["", "---\n---\n", "# only a comment\n"])
def test_an_empty_file_is_no_problem(tmp_path, content):
    (tmp_path / "empty.yaml").write_text(content)
    cluster = Manifests(tmp_path).read()
    assert (cluster.nodes, cluster.problems) == ({}, ())


def test_an_empty_folder_is_an_empty_cluster(tmp_path):
    assert Manifests(tmp_path).read().nodes == {}


def test_hidden_and_foreign_files_are_not_read(tmp_path):
    write(tmp_path, ".node.yaml.new", node("node-1"))
    write(tmp_path, ".node.yaml", node("node-2"))
    write(tmp_path, "README.md", node("node-3"))
    assert Manifests(tmp_path).read().nodes == {}


@not_on_windows("Wine makes no symbolic links, by which ConfigMaps are mounted")
def test_a_mounted_config_map_is_read_once(tmp_path):
    """The kubelet keeps each version in a hidden folder, and links to it."""
    write(tmp_path, "..2024_01_01/nodes.yaml", node("node-1"))
    (tmp_path / "..data").symlink_to("..2024_01_01")
    (tmp_path / "nodes.yaml").symlink_to("..data/nodes.yaml")
    cluster = Manifests(tmp_path).read()
    assert (set(cluster.nodes), problems(cluster)) == ({"node-1"}, [])


def test_the_old_pod_cidr_field_is_accepted(tmp_path):
    old = node("node-1") | {"spec": {"podCIDR": "172.16.9.0/24"}}
    write(tmp_path, "a.yaml", old)
    assert Manifests(tmp_path).read().nodes["node-1"].pod_cidrs == ("172.16.9.0/24",)


# Malformed input --------------------------------------------------------------------------------------------------


def test_a_missing_folder(tmp_path):
    with pytest.raises(
        ManifestsMissing, match="nowhere: no such file or directory; check `manifests` in the configuration"
    ):
        Manifests(tmp_path / "nowhere").read()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: b: c\n", "not valid YAML in line 1: mapping values are not allowed in this context"),
        (b"kind: Node\nspec: [\n", "not valid YAML in line 3: did not find expected node content"),
        (
            b"a: !!python/object:os.system x\n",
            "not valid YAML in line 1: could not determine a constructor for the tag",
        ),
        (b"created: 2024-13-45\n", "not valid YAML: month must be in 1..12"),
        (b"\x00\x01", "not valid YAML: unacceptable character"),
        (b"a: \xff\xff", "not valid YAML: unacceptable character #x00ff: invalid leading UTF-8 octet"),
    ],
)
def test_a_file_that_is_not_yaml(tmp_path, content, sentence):
    (tmp_path / "broken.yaml").write_bytes(content)
    write(tmp_path, "sound.yaml", node("node-1"))
    cluster = Manifests(tmp_path).read()
    assert set(cluster.nodes) == {"node-1"}
    [problem] = problems(cluster)
    assert problem.startswith(f"broken.yaml: {sentence}")
    assert problem.endswith("; none of it is used")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (5, "document 1: expected a Kubernetes object, got int"),
        (["a"], "document 1: expected a Kubernetes object, got list"),
        ({"kind": "Node"}, "document 1: an object needs `apiVersion` and `kind`"),
        ({"apiVersion": "v1", "metadata": {"name": "x"}}, "object x: an object needs `apiVersion` and `kind`"),
        ({"apiVersion": "v1", "kind": "Node"}, "document 1: object missing required field `metadata`"),
        ({"apiVersion": "v1", "kind": "Node", "metadata": 5}, "document 1: metadata: expected an object, got a number"),
        (
            {"apiVersion": "v1", "kind": "Node", "metadata": {}},
            "document 1: metadata: object missing required field `name`",
        ),
        (
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": 5}},
            "Node 5: metadata.name: expected text in quotes, got a number",
        ),
        (node("a") | {"spec": {"podCIDRs": "172.16.1.0/24"}}, "Node a: spec.podCIDRs: expected a list, got text"),
        (node("a") | {"spec": {"podCIDRs": [5]}}, "Node a: spec.podCIDRs[0]: expected text in quotes, got a number"),
        (
            node("a") | {"status": {"addresses": [{"type": "InternalIP"}]}},
            "Node a: status.addresses[0]: object missing required field `address`",
        ),
        (service("a", ports=[{"port": "80"}]), "Service shop/a: spec.ports[0].port: expected a number, got text"),
        (service("a", externalIPs="all"), "Service shop/a: spec.externalIPs: expected a list, got text"),
        (
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": 5},
            "Service default/a: spec: expected an object, got a number",
        ),
        (
            endpoint_slice("a", 5),
            "EndpointSlice shop/a: endpoints[0].addresses[0]: expected text in quotes, got a number",
        ),
        (
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "ServiceCIDR",
                "metadata": {"name": "a"},
                "spec": "10.96.0.0/16",
            },
            "ServiceCIDR a: spec: expected an object, got text",
        ),
        ({"apiVersion": "v1", "kind": "List", "items": 5}, "document 1: expected a Kubernetes object, got int"),
        ({"apiVersion": "v1", "kind": "List", "items": "abc"}, "document 1: expected a Kubernetes object, got str"),
    ],
)
def test_an_object_of_the_wrong_shape(tmp_path, document, problem):
    write(tmp_path, "a.yaml", document, node("sound"))
    cluster = Manifests(tmp_path).read()
    assert set(cluster.nodes) == {"sound"}
    assert problems(cluster) == [f"a.yaml: {problem}; it is left out, the rest is used"]


def test_a_node_that_is_defined_twice(tmp_path):
    write(tmp_path, "a.yaml", node("node-1", "172.16.1.0/24"))
    write(tmp_path, "b.yaml", node("node-1", "172.16.2.0/24"), node("node-2", "172.16.3.0/24"), node("node-2"))
    cluster = Manifests(tmp_path).read()
    assert cluster.nodes["node-1"].pod_cidrs == ("172.16.1.0/24",)
    assert cluster.nodes["node-2"].pod_cidrs == ("172.16.3.0/24",)
    assert problems(cluster) == [
        "b.yaml: Node node-1: is defined twice; the first one is used",
        "b.yaml: Node node-2: is defined twice; the first one is used",
    ]


def test_a_service_that_is_defined_twice(tmp_path):
    write(tmp_path, "a.yaml", service("web", clusterIPs=["10.96.0.1"]), service("web", clusterIPs=["10.96.0.1"]))
    manifests = Manifests(tmp_path)
    for _ in range(2):
        cluster = manifests.read()
        assert set(cluster.services) == {"shop/web"}
        assert problems(cluster) == ["a.yaml: Service shop/web: is defined twice; the first one is used"]
        write(tmp_path, "a.yaml", *[service("web", clusterIPs=["10.96.0.1"])] * 2, node("node-1"))


# Earlier versions -------------------------------------------------------------------------------------------------


def test_a_broken_file_keeps_its_earlier_objects(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", node("node-1"), node("node-2"))
    manifests.read()
    for content in ("{", "[", "{"):  # also if it is saved several times while it is broken
        (tmp_path / "a.yaml").write_text(content)
        cluster = manifests.read()
        assert set(cluster.nodes) == {"node-1", "node-2"}
        assert problems(cluster)[0].endswith("; the 2 objects that it held before stay in use")
    write(tmp_path, "a.yaml", node("node-2"))
    cluster = manifests.read()
    assert (set(cluster.nodes), cluster.problems) == ({"node-2"}, ())


def test_a_broken_object_keeps_its_earlier_version(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", node("node-1", "172.16.1.0/24"), node("node-2", "172.16.2.0/24"))
    manifests.read()
    broken = node("node-1") | {"spec": {"podCIDRs": 5}}
    write(tmp_path, "a.yaml", broken, node("node-2", "172.16.3.0/24"))
    cluster = manifests.read()
    assert cluster.nodes["node-1"].pod_cidrs == ("172.16.1.0/24",)
    assert cluster.nodes["node-2"].pod_cidrs == ("172.16.3.0/24",)
    assert problems(cluster) == [
        "a.yaml: Node node-1: spec.podCIDRs: expected a list, got a number; its earlier version stays in use"
    ]


def test_a_broken_service_keeps_its_earlier_version(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", service("web", clusterIPs=["10.96.0.1"]), endpoint_slice("web", "172.16.1.5"))
    before = manifests.read()
    write(tmp_path, "a.yaml", service("web", clusterIPs=5), endpoint_slice("web", 5))
    after = manifests.read()
    assert (after.services, after.slices) == (before.services, before.slices)
    assert [problem.rpartition("; ")[2] for problem in problems(after)] == ["its earlier version stays in use"] * 2


def test_a_removed_file_removes_its_objects(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", node("node-1"))
    write(tmp_path, "b.yaml", node("node-2"))
    manifests.read()
    (tmp_path / "a.yaml").unlink()
    assert set(manifests.read().nodes) == {"node-2"}


# Revisions and changes --------------------------------------------------------------------------------------------


def test_equal_content_has_an_equal_revision(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", node("node-1"))
    first = manifests.read().revision
    assert revision_of(tmp_path) == first
    write(tmp_path, "a.yaml", node("node-2"))
    second = manifests.read().revision
    assert second == revision_of(tmp_path) != first
    write(tmp_path, "a.yaml", node("node-1"))
    assert manifests.read().revision == first


def test_files_that_did_not_change_are_not_decoded_again(tmp_path):
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", node("node-1"))
    write(tmp_path, "b.yaml", node("node-2"))
    before = manifests.read()
    write(tmp_path, "b.yaml", node("node-2", "172.16.9.0/24"))
    after = manifests.read()
    assert after.nodes["node-1"] is before.nodes["node-1"]
    assert after.nodes["node-2"] is not before.nodes["node-2"]


def test_objects_that_did_not_change_stay_the_same_objects(tmp_path):
    """Also within one file: readers compare by identity."""
    manifests = Manifests(tmp_path)
    write(tmp_path, "a.yaml", service("a", clusterIPs=["10.96.0.1"]), service("b", clusterIPs=["10.96.0.2"]))
    before = manifests.read()
    write(tmp_path, "a.yaml", service("a", clusterIPs=["10.96.0.1"]), service("b", clusterIPs=["10.96.0.3"]))
    after = manifests.read()
    assert after.services["shop/a"] is before.services["shop/a"]
    assert after.services["shop/b"] != before.services["shop/b"]


async def test_a_change_of_the_folder_is_seen(tmp_path):
    write(tmp_path, "a.yaml", node("node-1"))
    changes = Manifests(tmp_path).changes()
    seen = (await anext(changes)).cluster
    assert set(seen.nodes) == {"node-1"}
    write(tmp_path, "b.yaml", node("node-2"))
    while set(seen.nodes) != {"node-1", "node-2"}:  # a write may be seen in two halves
        seen = (await anext(changes)).cluster
    (tmp_path / "a.yaml").unlink()
    while set(seen.nodes) != {"node-2"}:
        seen = (await anext(changes)).cluster
    await changes.aclose()


async def test_a_missing_folder_cannot_be_watched(tmp_path):
    with pytest.raises(ManifestsMissing, match="no such file or directory"):
        await anext(Manifests(tmp_path / "nowhere").changes())


async def test_a_change_of_a_single_file_is_seen(tmp_path):
    write(tmp_path, "a.yaml", node("node-1"))
    changes = Manifests(tmp_path / "a.yaml").changes()
    seen = (await anext(changes)).cluster
    write(tmp_path, "new.tmp", node("node-2"))
    (tmp_path / "new.tmp").replace(tmp_path / "a.yaml")  # as editors save
    while set(seen.nodes) != {"node-2"}:
        seen = (await anext(changes)).cluster
    await changes.aclose()


async def test_a_change_names_the_objects_that_changed(tmp_path):
    async def changes_by(name: str, *documents: object) -> ChangeSet:
        write(tmp_path, "new.tmp", *documents)
        (tmp_path / "new.tmp").replace(tmp_path / name)
        found = NOTHING
        while not found:  # the temporary file is not read
            found = (await anext(changes)).changes
        return found

    write(tmp_path, "node.yaml", node("node-1"))
    write(tmp_path, "a.yaml", service("a", clusterIPs=["10.96.0.1"]), service("b", clusterIPs=["10.96.0.2"]))
    changes = Manifests(tmp_path).changes()
    assert (await anext(changes)).changes == EVERYTHING
    services = service("a", clusterIPs=["10.96.0.1"]), service("b", clusterIPs=["10.96.0.3"])
    assert await changes_by("a.yaml", *services) == ChangeSet.of({Service: {"shop/b"}})
    assert await changes_by("b.yaml", endpoint_slice("w", "172.16.1.5")) == ChangeSet.of({EndpointSlice: {"shop/w"}})
    assert await changes_by("node.yaml", node("node-1", "172.16.9.0/24")) == ChangeSet.of({Node: {"node-1"}})
    await changes.aclose()
