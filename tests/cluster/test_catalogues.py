"""All Services of a Node: conflicts between them, and the work of a change."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from api_objects import HTTP, NODE, endpoint, service, slice_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered
from served_services import follow

from counted_lines import lines_run
from windlass.cluster.catalogues import Catalogue, SlicesByService
from windlass.cluster.changes import ChangeSet, differences
from windlass.cluster.clusters import Cluster, decode
from windlass.cluster.objects import EndpointSlice, Metadata, Service
from windlass.cluster.services import serve


def named(name: str, number: int, *, created: str | None = None, **spec: object) -> Service:
    """A Service with a ClusterIP of its own."""
    one = service(name, **{"clusterIPs": [f"10.96.0.{number}"]} | spec)
    raw = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "creationTimestamp": created}}
    return altered(one, metadata=decode(raw).metadata)


def cluster(*objects: Service | EndpointSlice) -> Cluster:
    return Cluster(
        services={one.key: one for one in objects if isinstance(one, Service)},
        slices={one.key: one for one in objects if isinstance(one, EndpointSlice)},
    )


def catalogue(*objects: Service | EndpointSlice) -> Catalogue:
    made = Catalogue()
    follow(made, cluster(*objects), NODE)
    return made


def doors(made: Catalogue, key: str) -> list[str]:
    return [f"{door.address or 'node'}:{door.port}" for port in made.services[key].ports for door in port.frontends]


def problems(made: Catalogue) -> list[str]:
    return [str(problem) for problem in made.problems]


def node_port(name: str, number: int, port: int = 30080, *, protocol: str = "TCP", **more: object) -> Service:
    ports = [HTTP | {"nodePort": port, "protocol": protocol}]
    return named(name, number, type="NodePort", ports=ports, **more)


# Conflicts between Services --------------------------------------------------------------------------------------


def test_a_node_port_belongs_to_one_service():
    made = catalogue(node_port("b", 2), node_port("a", 1))
    assert doors(made, "default/a") == ["10.96.0.1:80", "node:30080"]
    assert doors(made, "default/b") == ["10.96.0.2:80"]
    assert problems(made) == [
        "Service default/b: NodePort 30080/TCP belongs to Service default/a; the rest of the Service is served"
    ]


def test_both_families_of_a_node_port_are_one_sentence():
    dual = [node_port(name, 1, clusterIPs=[f"10.96.0.{n}", f"fd00:96::{n}"]) for name, n in (("a", 1), ("b", 2))]
    made = catalogue(*dual)
    assert doors(made, "default/b") == ["10.96.0.2:80", "fd00:96::2:80"]
    assert len(problems(made)) == 1


def test_other_protocols_and_families_do_not_conflict():
    made = catalogue(
        node_port("a", 1),
        node_port("b", 2, protocol="UDP"),
        node_port("c", 3, clusterIPs=["fd00:96::3"]),
        named("d", 4, externalIPs=["192.0.2.7"]),
        named("e", 5, externalIPs=["192.0.2.7"], ports=[{"port": 81}]),
    )
    assert problems(made) == []


@pytest.mark.parametrize(
    ("other", "left", "what"),
    [
        ({"externalIPs": ["192.0.2.7"]}, ["10.96.0.2:80"], "192.0.2.7:80/TCP"),
        ({"externalIPs": ["10.96.0.1"]}, ["10.96.0.2:80"], "10.96.0.1:80/TCP"),
        ({"clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.8"]}, ["192.0.2.8:80"], "ClusterIP 10.96.0.1"),
        ({"clusterIPs": ["10.96.0.1"], "ports": [{"port": 99}]}, [], "ClusterIP 10.96.0.1"),
        (
            {"clusterIPs": ["10.96.0.2", "fd00:96::2"], "externalIPs": ["2001:db8::7"]},
            ["10.96.0.2:80", "fd00:96::2:80"],
            "[2001:db8::7]:80/TCP",
        ),
    ],
)
def test_an_address_with_a_port_belongs_to_one_service(other, left, what):
    holder = named("a", 1, clusterIPs=["10.96.0.1", "fd00:96::1"], externalIPs=["192.0.2.7", "2001:db8::7"])
    made = catalogue(holder, named("b", 2, **other))
    assert doors(made, "default/b") == left
    assert problems(made) == [
        f"Service default/b: {what} belongs to Service default/a; the rest of the Service is served"
    ]
    assert ip_address("10.96.0.1") not in made.services["default/b"].cluster_ips


def test_a_health_check_port_is_a_node_port():
    balanced = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30080}
    made = catalogue(node_port("a", 1), named("b", 2, **balanced))
    assert made.services["default/b"].health_check_port == 0
    assert "NodePort 30080/TCP belongs to Service default/a" in problems(made)[0]


def test_the_service_that_was_created_first_wins():
    made = catalogue(
        node_port("a", 1),
        node_port("b", 2, created="2024-05-05T10:00:01Z"),
        node_port("c", 3, created="2024-05-05T10:00:00Z"),
    )
    assert [key for key in made.services if "node:30080" in doors(made, key)] == ["default/c"]


def test_the_owner_of_a_frontend_keeps_it():
    old, new = node_port("z", 1), node_port("a", 2)
    made = catalogue(old)
    assert follow(made, cluster(old, new), NODE) == {"default/a"}
    assert "node:30080" in doors(made, "default/z")
    assert "node:30080" not in doors(made, "default/a")
    changed = altered(old, spec=altered(old.spec, session_affinity="ClientIP"))
    follow(made, cluster(changed, new), NODE)  # the claim is unchanged
    assert "node:30080" in doors(made, "default/z")


@pytest.mark.parametrize("gives_up", [None, node_port("z", 1, 30081)])
def test_a_released_claim_goes_to_the_oldest_service_that_waits(gives_up):
    old = node_port("z", 1)
    waiting = [node_port("c", 3, created="2024-05-05T10:00:00Z"), node_port("b", 2), node_port("d", 4)]
    made = catalogue(old)
    follow(made, cluster(old, *waiting), NODE)
    left = [gives_up] if gives_up else []
    assert follow(made, cluster(*left, *waiting), NODE) == {"default/z", "default/c"}
    assert "node:30080" in doors(made, "default/c")
    assert [str(problem).partition(";")[0] for problem in made.problems] == [
        f"Service default/{name}: NodePort 30080/TCP belongs to Service default/c" for name in "bd"
    ]


def test_an_external_address_never_takes_from_a_cluster_ip():
    """Whichever Service is older, and on any port."""
    outside = named("a", 1, externalIPs=["10.96.0.9"])
    made = catalogue(outside)
    assert doors(made, "default/a") == ["10.96.0.1:80", "10.96.0.9:80"]
    inside = named("b", 9, ports=[{"port": 443}])
    assert follow(made, cluster(outside, inside), NODE) == {"default/a", "default/b"}
    assert doors(made, "default/a") == ["10.96.0.1:80"]
    assert problems(made) == [
        "Service default/a: 10.96.0.9:80/TCP belongs to Service default/b; the rest of the Service is served"
    ]
    assert follow(made, cluster(outside), NODE) == {"default/a", "default/b"}
    assert doors(made, "default/a") == ["10.96.0.1:80", "10.96.0.9:80"]


def test_a_swap_is_no_conflict():
    made = catalogue(node_port("a", 1, 30081), node_port("b", 2, 30082))
    follow(made, cluster(node_port("a", 1, 30082), node_port("b", 2, 30081)), NODE)
    assert (doors(made, "default/a")[1], doors(made, "default/b")[1]) == ("node:30082", "node:30081")
    assert problems(made) == []


def come_and_go(count: int) -> None:
    """Services that all conflict with the first one."""
    services = [
        node_port(f"s{number}", 1, clusterIPs=[f"10.96.{number >> 8}.{number & 255}"]) for number in range(count)
    ]
    made = catalogue(*services)
    assert len(made.problems) == count - 1
    follow(made, cluster(), NODE)
    assert (made.services, made.problems) == ({}, ())


def test_the_work_for_conflicting_services_is_linear():
    """Quadratic work would be a hundred times as much."""
    assert lines_run(lambda: come_and_go(2000)) < 15 * lines_run(lambda: come_and_go(200))


# From one Cluster to the next -------------------------------------------------------------------------------------


def test_one_change_recomputes_one_service():
    services = [named(name, number) for number, name in enumerate("abc", start=1)]
    slices = [slice_of(endpoint("172.16.2.5"), name=f"{name}-1", of=name) for name in "abc"]
    made = catalogue(*services, *slices)
    before = dict(made.services)
    slices[1] = slice_of(endpoint("172.16.2.6"), name="b-1", of="b")
    assert follow(made, cluster(*services, *slices), NODE) == {"default/b"}
    assert made.services["default/b"].ports[0].endpoints[0].address == ip_address("172.16.2.6")
    assert all(made.services[key] is before[key] for key in ("default/a", "default/c"))


def test_only_the_named_changes_are_followed():
    services = [named(name, number) for number, name in enumerate("abc", start=1)]
    made = catalogue(*services)
    services[1] = named("b", 9)
    one = slice_of(endpoint("172.16.2.5"), of="c")
    now = cluster(*services, one)
    changes = ChangeSet.of({Service: {"default/b"}, EndpointSlice: {one.key}})
    assert follow(made, now, NODE, changes) == {"default/b", "default/c"}
    assert made.services == catalogue(*services, one).services
    assert follow(made, now, NODE) == set()


def test_an_equal_service_is_no_change():
    one, other = named("a", 1), named("a", 1, ports=[HTTP | {"targetPort": "www"}])
    assert follow(catalogue(one), cluster(other), NODE) == set()


def test_a_deleted_service():
    one = named("a", 1)
    made = catalogue(one)
    assert follow(made, cluster(), NODE) == {"default/a"}
    assert made.services == {}


def test_a_service_that_another_proxy_takes_over():
    made = catalogue(named("a", 1))
    assert follow(made, cluster(named("a", 1, type="ExternalName")), NODE) == {"default/a"}
    assert made.services == {}


def test_slices_may_come_before_their_service():
    one = slice_of(endpoint("172.16.2.5"), of="a")
    made = catalogue(one)
    assert made.services == {}
    follow(made, cluster(one, named("a", 1)), NODE)
    assert len(made.services["default/a"].ports[0].endpoints) == 1


def test_a_slice_that_moves_to_another_service_changes_both():
    services = [named("a", 1), named("b", 2)]
    made = catalogue(*services, slice_of(endpoint("172.16.2.5"), of="a"))
    assert follow(made, cluster(*services, slice_of(endpoint("172.16.2.5"), of="b")), NODE) == {
        "default/a",
        "default/b",
    }
    assert [len(made.services[f"default/{name}"].ports[0].endpoints) for name in "ab"] == [0, 1]


def test_slices_belong_to_the_labelled_service_of_their_namespace():
    index = SlicesByService()
    mine, nobodys = slice_of(of="web"), slice_of(name="x", of=None)
    elsewhere = altered(mine, metadata=Metadata("web-1", "other", mine.metadata.labels))
    assert index.follow({one.key: one for one in (mine, nobodys, elsewhere)}) == {"default/web", "other/web"}
    assert (index.of("default/web"), index.of("other/web")) == ((mine,), (elsewhere,))
    assert index.follow({}) == {"default/web", "other/web"}
    assert index.of("default/web") == ()


def test_a_change_of_the_node_changes_all():
    one = slice_of(endpoint("172.16.2.5", zones=["zone-a"]), endpoint("172.16.2.6", zones=["zone-b"]), of="a")
    made = catalogue(named("a", 1), one)
    follow(made, cluster(named("a", 1), one), replace(NODE, zone="zone-b"))
    assert made.services["default/a"].ports[0].endpoints[0].address == ip_address("172.16.2.6")


def test_a_corrected_problem_is_reported_no_longer():
    made = catalogue(named("a", 1, externalIPs=["here"]))
    assert len(made.problems) == 1
    assert follow(made, cluster(named("a", 1)), NODE) == set()
    assert made.problems == ()


# Laws -------------------------------------------------------------------------------------------------------------

values = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["one", "two", "three"]))


@given(values, values)
def test_differences_are_the_keys_of_changed_objects(old, new):
    assert differences(old, new) == {key for key in old.keys() | new.keys() if old.get(key) is not new.get(key)}


wishes = st.builds(
    lambda name, number, port, external, created: node_port(
        name, number, 30080 + port, externalIPs=external, created=f"2024-05-05T10:00:0{created}Z" if created else None
    ),
    st.sampled_from("abcd"),
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.sampled_from(["192.0.2.7", "192.0.2.8", "10.96.0.1"]), max_size=2),
    st.integers(0, 2),
)
backends = st.builds(
    lambda name, of, last: slice_of(endpoint(f"172.16.2.{last}"), name=f"slice-{name}", of=of),
    st.sampled_from("xyz"),
    st.sampled_from("abcd"),
    st.integers(1, 3),
)
clusters = st.lists(wishes | backends, max_size=7).map(lambda objects: cluster(*objects))


@given(st.lists(clusters, min_size=1, max_size=5))
@settings(deadline=None)
def test_step_by_step_gives_the_same_as_at_once_except_for_earlier_owners(steps):
    made = Catalogue()
    for step in steps:
        before = dict(made.services)
        changed = follow(made, step, NODE)
        now = made.services
        assert changed == {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
        holders: dict[object, str] = {}
        for key, one in now.items():
            raw, _ = serve(step.services[key], made._slices.of(key), NODE)
            for port, wanted in zip(one.ports, raw.ports, strict=True):
                assert altered(port, frontends=()) == altered(wanted, frontends=())
                for door in port.frontends:  # each is one Service's ...
                    assert holders.setdefault((door.address, door.port), key) == key
        cluster_ips = [address for one in now.values() for address in one.cluster_ips]
        assert len(cluster_ips) == len(set(cluster_ips))
        for key, one in now.items():
            raw, _ = serve(step.services[key], made._slices.of(key), NODE)
            assert set(raw.cluster_ips) <= set(cluster_ips)
            for port, wanted in zip(one.ports, raw.ports, strict=True):
                for door in set(wanted.frontends) - set(port.frontends):  # ... and none is lost without a reason
                    assert door.address in cluster_ips or (door.address, door.port) in holders
        fresh = Catalogue()
        follow(fresh, step, NODE)
        assert fresh.services.keys() == now.keys()
        if not fresh.problems:
            assert fresh.services == now
            assert made.problems == ()
