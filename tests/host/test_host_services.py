"""The items that Services need on the host, and the claims of several owners."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from host_states import node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.host.plans import ExternalPort, HostNames, Neighbour, NodePort, Route, ServiceAccess
from windlass.host.services import ItemClaims, plan_service, plan_services
from windlass.model.families import Family
from windlass.model.nodes import TrafficMode
from windlass.model.services import Frontend, Protocol, Reach, ServedPort, ServedService

NODE = node(TrafficMode.ENCAP)
ONLY_IPV4 = replace(NODE, pod_cidrs={Family.IPV4: NODE.pod_cidrs[Family.IPV4]})
NAMES = HostNames(uplink="eth0")
CIDRS = (ip_network("10.96.0.0/16"), ip_network("fd00:10:96::/112"))


def port(family: Family, *frontends: Frontend, protocol: Protocol = Protocol.TCP) -> ServedPort:
    return ServedPort("http", protocol, family, frontends, (), ())


def frontend(reach: Reach, number: int, address: str | None = None) -> Frontend:
    return Frontend(reach, None if address is None else ip_address(address), number)


def routes(items: frozenset[object]) -> set[str]:
    return {
        f"{r.destination} via {r.via} dev {r.interface} src {r.source}{' onlink' if r.onlink else ''}"
        for r in items
        if isinstance(r, Route)
    }


def test_services_are_reached_by_the_virtual_next_hop_as_the_gateway():
    items = plan_services(NODE, NAMES, CIDRS, mtu=1450).items
    assert routes(items) == {
        "169.254.169.111/32 via None dev windlass-gw0 src 10.0.1.1",
        "169.254.169.110/32 via 169.254.169.111 dev windlass-gw0 src 10.0.1.1 onlink",
        "169.254.169.112/32 via 169.254.169.111 dev windlass-gw0 src 10.0.1.1 onlink",
        "10.96.0.0/16 via 169.254.169.111 dev windlass-gw0 src 10.0.1.1 onlink",
        "fd00:169:254:169::111/128 via None dev windlass-gw0 src 2001:db8:1::1",
        "fd00:169:254:169::110/128 via fd00:169:254:169::111 dev windlass-gw0 src 2001:db8:1::1 onlink",
        "fd00:169:254:169::112/128 via fd00:169:254:169::111 dev windlass-gw0 src 2001:db8:1::1 onlink",
        "fd00:10:96::/112 via fd00:169:254:169::111 dev windlass-gw0 src 2001:db8:1::1 onlink",
    }
    assert {(str(i.address), i.mac) for i in items if isinstance(i, Neighbour)} == {
        ("169.254.169.111", "aa:bb:cc:dd:ee:ff"),
        ("fd00:169:254:169::111", "aa:bb:cc:dd:ee:ff"),
    }


def test_node_ports_answer_everywhere_or_in_the_configured_networks():
    (access,) = (i for i in plan_services(NODE, NAMES, CIDRS, mtu=1450).items if isinstance(i, ServiceAccess))
    assert access == ServiceAccess(
        gateway="windlass-gw0",
        bridge="br-int",
        sources=frozenset(map(ip_address, ("10.0.1.1", "2001:db8:1::1"))),
        node_ips=frozenset(map(ip_address, ("192.0.2.5", "2001:db8::5"))),
        networks=frozenset(map(ip_network, ("0.0.0.0/0", "::/0"))),
        mtu=1450,
        snat_ports=((12288, 28671), (32768, 49151)),
    )
    # Disjoint, because a set of intervals refuses overlaps.
    networks = tuple(map(ip_network, ("192.0.2.0/24", "192.0.2.128/25", "127.0.0.0/8")))
    (access,) = (i for i in plan_services(NODE, NAMES, CIDRS, networks, mtu=1450).items if isinstance(i, ServiceAccess))
    assert access.networks == {ip_network("192.0.2.0/24"), ip_network("127.0.0.0/8")}


def test_unreserved_ephemeral_ports_are_not_items_of_the_host():
    items = plan_services(replace(NODE, ports_reserved=False), NAMES, CIDRS, mtu=1450).items
    (access,) = (item for item in items if isinstance(item, ServiceAccess))
    assert access.snat_ports == ((16384, 28671),)


def test_a_node_of_one_family_has_items_of_that_family_only():
    shared = plan_services(ONLY_IPV4, NAMES, CIDRS, mtu=1450).items
    assert not any(":" in route for route in routes(shared))
    service = ServedService(
        "default",
        "web",
        (port(Family.IPV6, frontend(Reach.NODE_PORT, 30080)), port(Family.IPV4, frontend(Reach.NODE_PORT, 30081))),
        (ip_address("fd00:99::1"),),
    )
    assert plan_service(ONLY_IPV4, NAMES, service, CIDRS) == {NodePort(Family.IPV4, Protocol.TCP, 30081)}


def test_a_service_requests_its_node_ports_and_external_ports():
    frontends = (
        frontend(Reach.CLUSTER_IP, 80, "10.96.0.10"),
        frontend(Reach.NODE_PORT, 30080),
        frontend(Reach.EXTERNAL, 80, "203.0.113.80"),
    )
    service = ServedService("default", "web", (port(Family.IPV4, *frontends),), (ip_address("10.96.0.10"),))
    assert plan_service(NODE, NAMES, service, CIDRS) == {
        NodePort(Family.IPV4, Protocol.TCP, 30080),
        ExternalPort(ip_address("203.0.113.80"), Protocol.TCP, 80),
    }


def test_a_cluster_ip_outside_of_the_known_networks_has_a_route_of_its_own():
    service = ServedService("default", "old", (), (ip_address("172.30.0.1"), ip_address("10.96.0.7")))
    assert routes(plan_service(NODE, NAMES, service, CIDRS)) == {
        "172.30.0.1/32 via 169.254.169.111 dev windlass-gw0 src 10.0.1.1 onlink"
    }


def test_an_item_of_two_services_stays_until_both_release_it():
    shared, own = (NodePort(Family.IPV4, Protocol.TCP, number) for number in (30080, 30081))
    claims = ItemClaims()
    assert claims.set("default/a", frozenset((shared, own))).added == {shared, own}
    assert not claims.set("default/b", frozenset((shared,)))
    assert not claims.set("default/b", frozenset((shared,)))
    assert claims.set("default/a", frozenset()).removed == {own}
    assert claims.items == {shared}
    assert claims.set("default/b", frozenset((own,))).removed == {shared}
    assert claims.items == {own}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["default/a", "default/b", "default/c"]),
            st.frozensets(st.integers(30000, 30004).map(lambda n: NodePort(Family.IPV4, Protocol.TCP, n))),
        )
    )
)
def test_the_changes_of_claims_add_up_to_the_claimed_items(steps):
    claims, asked, there = ItemClaims(), {}, frozenset()
    for owner, items in steps:
        change = claims.set(owner, items)
        assert not change.added & there
        assert change.removed <= there
        there = there - change.removed | change.added
        asked[owner] = items
        assert there == claims.items == frozenset().union(*asked.values())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["default/a", "default/b", "default/c"]),
            st.frozensets(st.integers(30000, 30004).map(lambda n: NodePort(Family.IPV4, Protocol.TCP, n))),
        )
    )
)
def test_an_item_that_moves_between_owners_does_not_change(steps):
    claims, asked, there = ItemClaims(), {}, frozenset()
    for together in steps:
        change = claims.set_all(together)
        asked |= together
        wanted = frozenset().union(*asked.values())
        assert (change.removed, change.added) == (there - wanted, wanted - there)
        there = wanted
        assert claims.items == there
        assert set(claims.owners) == {owner for owner, items in asked.items() if items}
