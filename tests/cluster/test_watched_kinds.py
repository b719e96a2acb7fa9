"""A watched kind is one declaration: a kind that only this file knows is listed, decoded, saved and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import pytest
import yaml
from api_servers import BUILT_IN, StandIn, listening

from windlass.cluster import journals, lastgood
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import KINDS, Cluster, objects_of, with_objects
from windlass.cluster.kinds import WatchedKind, by_key, kinds_of
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.manifests import Manifests
from windlass.cluster.objects import APIObject, Metadata


class TulipSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    colour: str = ""


class Tulip(APIObject, frozen=True):
    spec: TulipSpec = TulipSpec()


@dataclass(frozen=True, slots=True)
class Garden(Cluster):
    tulips: Mapping[str, Tulip] = by_key(WatchedKind(Tulip, "garden.example/v1", "tulips", label_selector="!wild"))


PATH = "/apis/garden.example/v1/tulips"
RED = Tulip(Metadata("red", "park"), TulipSpec("red"))
BLUE = Tulip(Metadata("red", "park"), TulipSpec("blue"))
RED_CHANGES = ChangeSet.of({Tulip: {"park/red"}})


async def test_it_is_listed_watched_and_decoded_from_an_api_server():
    server = StandIn((*BUILT_IN, kinds_of(Garden)["tulips"]))
    server.put(PATH, "red", "park", spec={"colour": "red", "height": 30})
    await server.start()
    try:
        async with listening(server, cluster=Garden) as listener:
            first = (await listener.hear()).cluster
            assert isinstance(first, Garden)
            assert first.tulips == {"park/red": RED}
            assert [asked["labelSelector"] for path, asked in server.requests if path == PATH] == ["!wild"]
            server.put(PATH, "red", "park", spec={"colour": "blue"})
            cluster, changes, _ = await listener.hear()
            assert isinstance(cluster, Garden)
            assert cluster.tulips == {"park/red": BLUE}
            assert cluster.revision != first.revision
            assert changes == RED_CHANGES
            server.put(PATH, "red", "park", spec={"colour": 7})
            cluster, *_ = await listener.hear()
            (problem,) = cluster.problems
            said = "spec.colour: expected text in quotes, got a number; its earlier version stays in use"
            assert str(problem) == f"Tulip park/red: {said}"
            server.remove(PATH, "red", "park")
            cluster, changes, _ = await listener.hear()
            assert isinstance(cluster, Garden)
            assert cluster.tulips == {}
            assert changes == RED_CHANGES
    finally:
        await server.stop()


async def test_it_is_read_from_manifests(tmp_path):
    def write(colour: str) -> None:
        document = {
            "apiVersion": "garden.example/v1",
            "kind": "Tulip",
            "metadata": {"name": "red", "namespace": "park"},
        }
        (tmp_path / ".new").write_text(yaml.safe_dump(document | {"spec": {"colour": colour}}))
        (tmp_path / ".new").replace(tmp_path / "garden.yaml")

    write("red")
    changes = Manifests(tmp_path, Garden).changes()
    cluster = (await anext(changes)).cluster
    assert isinstance(cluster, Garden)
    assert cluster.tulips == {"park/red": RED}
    write("blue")
    found = ChangeSet()
    while not found:
        _, found, _ = await anext(changes)
    assert found == RED_CHANGES
    await changes.aclose()


def test_it_is_in_the_role():
    assert {"apiGroups": ["garden.example"], "resources": ["tulips"], "verbs": ["list", "watch"]} in rules(Garden)


def test_it_is_saved_and_journalled(tmp_path):
    whole = Garden("r1", tulips={"park/red": RED})
    lastgood.save(tmp_path, whole)
    assert lastgood.load(tmp_path, Garden) == whole
    changed = replace(whole, revision="r2", tulips={"park/red": BLUE})
    gone = replace(whole, revision="r3", tulips={})
    lines = [journals.line("r1", changed, RED_CHANGES), journals.line("r2", gone, RED_CHANGES)]
    assert journals.replayed(whole, lines[:1]) == changed
    assert journals.replayed(whole, lines) == gone


# The kinds of Windlass itself -------------------------------------------------------------------------------------


def test_no_kind_is_declared_twice():
    assert len({kind.struct for kind in KINDS}) == len(KINDS)
    assert len({(kind.path, *kind.selectors("node-1").values()) for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("member", kinds_of(Cluster))
def test_a_change_of_any_kind_is_journalled_at_once(member):
    kind = kinds_of(Cluster)[member]
    metadata = {"name": "a", **({"namespace": "b"} if kind.struct.is_namespaced else {})}
    one = msgspec.convert({"metadata": metadata}, kind.struct)
    before = with_objects(Cluster("r1"), {member: {one.key: one}})
    line = journals.line("r0", before, ChangeSet.of({kind.struct: {one.key}}))
    after = journals.replayed(Cluster("r0"), [line])
    assert objects_of(after, member) == {one.key: one}
    assert after == before
