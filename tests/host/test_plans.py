"""What a Node's host should hold, and the difference from what it holds."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from host_states import PEERS, STATE, node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.host.plans import (
    ConntrackParameter,
    ConntrackSetting,
    ExternalPort,
    HostAddress,
    HostChange,
    HostNames,
    HostPlan,
    InterfaceSettings,
    Neighbour,
    NodePort,
    Route,
    diff,
    plan,
    plan_peer,
    pod_mtu,
)
from windlass.model.families import Family
from windlass.model.nodes import NodeState, TrafficMode
from windlass.model.services import Protocol

NAMES = HostNames(uplink="eth0")

BY_TUNNEL = {
    "10.0.3.0/24 by windlass-gw0 via 10.0.3.1 onlink",
    "2001:db8:3::/64 by windlass-gw0 via 2001:db8:3::1 onlink",
}
DIRECTLY = {"10.0.2.0/24 by br-int via 192.0.2.6", "2001:db8:2::/64 by br-int via 2001:db8::6"}


@pytest.mark.parametrize(
    ("mode", "name", "routes"),
    [
        (TrafficMode.ENCAP, "far", BY_TUNNEL),
        (
            TrafficMode.ENCAP,
            "near",
            {
                "10.0.2.0/24 by windlass-gw0 via 10.0.2.1 onlink",
                "2001:db8:2::/64 by windlass-gw0 via 2001:db8:2::1 onlink",
            },
        ),
        (TrafficMode.NO_ENCAP, "near", DIRECTLY),
        (TrafficMode.NO_ENCAP, "far", set()),  # the default route: the network between knows the PodCIDRs
        (TrafficMode.HYBRID, "near", DIRECTLY),
        (TrafficMode.HYBRID, "far", BY_TUNNEL),
    ],
)
def test_routes_to_the_pods_of_a_peer(mode, name, routes):
    items = plan_peer(node(mode), PEERS[name], NAMES).items
    assert {
        f"{r.destination} by {r.interface} via {r.via}{' onlink' if r.onlink else ''}"
        for r in items
        if isinstance(r, Route)
    } == routes
    assert len(items) == len(routes)


def test_a_peer_of_one_family_gets_routes_of_that_family():
    peer = replace(PEERS["far"], pod_cidrs={Family.IPV6: ip_network("2001:db8:3::/64")})
    (route,) = plan_peer(node(TrafficMode.ENCAP), peer, NAMES).items
    assert isinstance(route, Route)
    assert route.destination == ip_network("2001:db8:3::/64")


def test_the_gateway_has_the_first_address_of_each_pod_cidr():
    items = plan(NodeState(node(TrafficMode.ENCAP)), NAMES, 1500, userspace=False).items
    assert items == {
        HostAddress("windlass-gw0", ip_interface("10.0.1.1/24")),
        HostAddress("windlass-gw0", ip_interface("2001:db8:1::1/64")),
    }


def test_the_plan_is_the_sum_of_its_owners_items():
    whole = plan(STATE, NAMES, 1500, userspace=False)
    parts = plan(NodeState(STATE.node), NAMES, 1500, userspace=False)
    for peer in PEERS.values():
        parts |= plan_peer(STATE.node, peer, NAMES)
    assert whole == parts


def test_only_the_userspace_datapath_filters_ingress_and_disables_offloads():
    for userspace in (True, False):
        settings = {s.name: s for s in plan(STATE, NAMES, 1500, userspace=userspace).settings}
        assert settings["eth0"].kernel_ingress is not userspace
        assert settings["br-int"].kernel_ingress is settings["windlass-gw0"].kernel_ingress is None
        assert {s.offloads for s in settings.values()} == {False if userspace else None}


def test_bridge_and_gateway_forward_and_only_the_gateway_accepts_the_hosts_own_source():
    settings = {s.name: s for s in plan(STATE, NAMES, 9000, userspace=False).settings}
    for name, mac, mtu, accepts in (
        ("br-int", "02:00:00:00:00:05", 9000, False),
        ("windlass-gw0", "0a:58:0a:00:01:01", 8950, True),
    ):
        assert settings[name] == InterfaceSettings(
            name, up=True, mac=mac, mtu=mtu, forwards=frozenset(Family), accepts_own_source=accepts
        )


@pytest.mark.parametrize(
    ("mode", "underlay", "mtu"),
    [
        (TrafficMode.ENCAP, set(Family), 1450),
        (TrafficMode.ENCAP, {Family.IPV4}, 1450),
        (TrafficMode.ENCAP, {Family.IPV6}, 1430),
        (TrafficMode.HYBRID, {Family.IPV6}, 1430),
        (TrafficMode.HYBRID, set(Family), 1450),
        (TrafficMode.NO_ENCAP, {Family.IPV6}, 1500),
    ],
)
def test_a_pods_packet_fits_into_the_tunnel(mode, underlay, mtu):
    all_ = node(mode)
    assert pod_mtu(replace(all_, addresses={f: a for f, a in all_.addresses.items() if f in underlay}), 1500) == mtu


def test_a_configured_mtu_applies_to_pods_and_gateway_but_not_to_the_bridge_interface():
    settings = {s.name: s for s in plan(STATE, NAMES, 1500, userspace=True, configured_mtu=1400).settings}
    assert (settings["windlass-gw0"].mtu, settings["br-int"].mtu) == (1400, 1500)
    assert pod_mtu(STATE.node, 1500, 1400) == 1400


interfaces = st.sampled_from(["br-int", "windlass-gw0", "eth0"])
addresses = st.sampled_from([f"10.0.{i}.1" for i in range(4)] + [f"2001:db8:{i}::1" for i in range(4)]).map(ip_address)
networks = addresses.map(lambda a: ip_network((a, 24 if a.version == 4 else 64), strict=False))
items = st.one_of(
    st.builds(HostAddress, interfaces, addresses.map(lambda a: ip_interface((a, 24)))),
    st.builds(Route, networks, interfaces, st.none() | addresses, st.booleans(), st.none() | addresses),
    st.builds(Neighbour, interfaces, addresses, st.sampled_from(["02:00:00:00:00:01", "02:00:00:00:00:02"])),
    st.builds(NodePort, st.sampled_from(Family), st.sampled_from(Protocol), st.integers(30000, 30002)),
    st.builds(ExternalPort, addresses, st.sampled_from(Protocol), st.integers(80, 81)),
)
maybe = st.none() | st.booleans()
macs = st.sampled_from(["02:00:00:00:00:01", "02:00:00:00:00:02"])
mtus = st.sampled_from([1450, 1500])
families = st.frozensets(st.sampled_from(Family))


tracking = st.lists(
    st.builds(ConntrackSetting, st.sampled_from(ConntrackParameter), st.integers(1, 3)), unique_by=lambda s: s.what
).map(frozenset)


def plans(settings: st.SearchStrategy[InterfaceSettings]) -> st.SearchStrategy[HostPlan]:
    each = st.lists(settings, unique_by=lambda s: s.name).map(frozenset)
    return st.builds(HostPlan, each, st.frozensets(items), tracking)


wishes = plans(
    st.builds(InterfaceSettings, interfaces, maybe, st.none() | macs, st.none() | mtus, families, maybe, maybe, maybe)
)
facts = plans(
    st.builds(
        InterfaceSettings,
        interfaces,
        *(st.booleans(), macs, mtus, families, st.booleans(), st.booleans()),
        st.booleans(),
    )
)


def applied(installed: HostPlan, change: HostChange) -> HostPlan:
    """A model of a host: applies each setting of a change."""
    settings = {s.name: s for s in installed.settings}
    for wanted in change.settings:
        now = settings.get(wanted.name, InterfaceSettings(wanted.name))
        named = {
            name: getattr(wanted, name)
            for name in ("up", "mac", "mtu", "accepts_own_source", "offloads", "kernel_ingress")
            if getattr(wanted, name) is not None
        }
        settings[wanted.name] = replace(now, **named, forwards=now.forwards | wanted.forwards)
    tracked = {s.what: s for s in (*installed.tracking, *change.tracking)}
    items = installed.items - change.removed | change.added
    return HostPlan(frozenset(settings.values()), items, frozenset(tracked.values()))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(installed=facts, desired=wishes)
def test_applying_the_difference_gives_the_desired_state_whatever_was_installed(installed, desired):
    change = diff(installed, desired)
    after = applied(installed, change)

    assert after.items == desired.items
    assert not diff(after, desired)
    # And it names nothing that holds already.
    assert not change.removed & desired.items
    assert not change.added & installed.items


def test_settings_of_connection_tracking_are_set_and_its_limit_is_only_raised():
    def tracked(**values: int) -> HostPlan:
        return HostPlan(
            tracking=frozenset(ConntrackSetting(ConntrackParameter[name], value) for name, value in values.items())
        )

    desired = tracked(LIMIT=1000, TCP_ESTABLISHED=86400, TCP_CLOSE_WAIT=3600)
    for installed, change in (
        (tracked(), tracked()),  # nothing can be set
        (tracked(TCP_CLOSE_WAIT=60, UDP=30), tracked(TCP_CLOSE_WAIT=3600)),
        (tracked(LIMIT=999, TCP_ESTABLISHED=432000), tracked(LIMIT=1000, TCP_ESTABLISHED=86400)),
        (tracked(LIMIT=1001, TCP_ESTABLISHED=86400), tracked()),
    ):
        assert diff(installed, desired) == HostChange(tracking=change.tracking)
    assert tracked(UDP=30) | tracked(LIMIT=1) == tracked(UDP=30, LIMIT=1)


def test_a_plan_does_not_differ_from_itself():
    desired = plan(STATE, NAMES, 1500, userspace=True)
    assert not diff(desired, desired)


def test_a_difference_in_settings_names_only_changed_settings():
    (settings,) = diff(
        HostPlan(frozenset((InterfaceSettings("br-int", up=True, mtu=1500, forwards=frozenset((Family.IPV4,))),))),
        HostPlan(frozenset((InterfaceSettings("br-int", up=True, mtu=9000, forwards=frozenset(Family)),))),
    ).settings
    assert settings == InterfaceSettings("br-int", mtu=9000, forwards=frozenset((Family.IPV6,)))
