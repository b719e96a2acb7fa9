"""Which addresses and routes belong to the uplink, and the steps that move them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.host.linux.adapter_state import LEARNED, Adapter, AdapterAddress, AdapterRoute, NextHop
from windlass.host.linux.migrations import AddItem, RemoveItem, UplinkRecord, alike, steps, uplink_with_all
from windlass.host.plans import Route
from windlass.model.families import Family

NODE_IP = AdapterAddress(ip_interface("192.0.2.5/24"))
VIRTUAL = AdapterAddress(ip_interface("192.0.2.77/24"))
DEFAULT = AdapterRoute(ip_network("0.0.0.0/0"), via=ip_address("192.0.2.1"), metric=100)
OTHER = AdapterRoute(ip_network("203.0.113.0/24"), via=ip_address("192.0.2.9"))
DEFAULT6 = AdapterRoute(ip_network("::/0"), via=ip_address("fe80::1"), metric=1024)
ON_LINK = AdapterRoute(ip_network("198.51.100.7/32"))

FULL = Adapter("eth0", 2, "02:00:00:00:00:05", 1500, (NODE_IP, VIRTUAL), (DEFAULT, OTHER))
BARE = replace(FULL, addresses=(), routes=())
BRIDGE = Adapter("br-int", 7, "02:00:00:00:00:99", 1500)
SETTLED = UplinkRecord(FULL, "br-int", boot="today", settled_on=7)


def test_at_first_the_items_are_those_of_the_nic():
    assert uplink_with_all(None, FULL, BRIDGE, "today") == FULL


def test_without_a_record_the_items_include_those_of_the_bridge_interface():
    bridge = replace(BRIDGE, addresses=(NODE_IP,), routes=(DEFAULT,))
    half = replace(FULL, addresses=(VIRTUAL,), routes=(OTHER,))
    assert uplink_with_all(None, half, bridge, "today") == FULL


def test_after_a_boot_the_items_of_the_nic_replace_the_record():
    renumbered = replace(BARE, addresses=(AdapterAddress(ip_interface("192.0.2.6/24")),))
    assert uplink_with_all(SETTLED, renumbered, BRIDGE, "tomorrow") == renumbered


def test_after_a_boot_without_items_on_the_nic_the_record_is_used():
    assert uplink_with_all(SETTLED, BARE, BRIDGE, "tomorrow") == FULL
    assert uplink_with_all(SETTLED, BARE, None, "tomorrow") == FULL


def test_the_record_of_another_nic_is_ignored():
    other = replace(FULL, name="eth1", addresses=(AdapterAddress(ip_interface("10.9.9.9/24")),), routes=())
    assert uplink_with_all(SETTLED, other, BRIDGE, "today") == other


def test_a_recreated_bridge_interface_gets_all_items():
    assert uplink_with_all(SETTLED, BARE, replace(BRIDGE, index=8), "today") == FULL


def test_a_removed_address_stays_removed_unless_it_is_a_node_ip():
    bridge = replace(BRIDGE, addresses=(), routes=(DEFAULT, OTHER))
    goal = uplink_with_all(SETTLED, BARE, bridge, "today", [NODE_IP.ip])
    assert goal.addresses == (NODE_IP,)


def test_a_route_from_a_removed_address_stays_removed():
    record = replace(SETTLED, uplink=replace(FULL, routes=(DEFAULT, replace(OTHER, source=VIRTUAL.ip))))
    bridge = replace(BRIDGE, addresses=(NODE_IP,), routes=(DEFAULT,))
    assert uplink_with_all(record, BARE, bridge, "today").routes == (DEFAULT,)


def test_a_route_that_was_changed_on_the_bridge_interface_stays_changed():
    changed = replace(DEFAULT, via=ip_address("192.0.2.254"))
    bridge = replace(BRIDGE, addresses=(NODE_IP, VIRTUAL), routes=(changed, OTHER))
    goal = uplink_with_all(SETTLED, BARE, bridge, "today")
    assert goal.routes == (changed, OTHER)
    assert list(steps(goal, BARE, bridge)) == []


def test_a_withdrawn_route_stays_removed_unless_the_kernel_removed_it():
    bridge = replace(BRIDGE, addresses=(NODE_IP, VIRTUAL), routes=(DEFAULT,))
    withdrawn = uplink_with_all(SETTLED, BARE, bridge, "today", [NODE_IP.ip], intact=[Family.IPV4])
    assert withdrawn.routes == (DEFAULT,)
    assert uplink_with_all(SETTLED, BARE, bridge, "today", [NODE_IP.ip]).routes == (DEFAULT, OTHER)
    assert uplink_with_all(SETTLED, BARE, bridge, "today", [NODE_IP.ip], intact=[Family.IPV6]).routes == FULL.routes


def test_routes_are_restored_if_the_node_ip_is_missing():
    bridge = replace(BRIDGE, addresses=(VIRTUAL,), routes=())
    goal = uplink_with_all(SETTLED, BARE, bridge, "today", [NODE_IP.ip], intact=[Family.IPV4])
    assert goal.routes == FULL.routes


def test_items_that_expired_without_the_bridge_interface_are_not_restored():
    lease = replace(VIRTUAL, valid_until=100)
    advertised = replace(DEFAULT6, expires_at=100)
    record = replace(SETTLED, uplink=replace(FULL, addresses=(NODE_IP, lease), routes=(DEFAULT, advertised)))
    assert uplink_with_all(record, BARE, None, "today", now=99) == record.uplink
    assert uplink_with_all(record, BARE, None, "today", now=100) == replace(
        FULL, addresses=(NODE_IP,), routes=(DEFAULT,)
    )


def test_a_node_ip_whose_lease_expired_is_restored_permanently():
    record = replace(SETTLED, uplink=replace(FULL, addresses=(replace(NODE_IP, valid_until=100), VIRTUAL)))
    assert uplink_with_all(record, BARE, None, "today", [NODE_IP.ip], now=200).addresses == (NODE_IP, VIRTUAL)


def test_a_learned_route_is_preferred_to_its_copy():
    learned = AdapterRoute(ip_network("::/0"), via=ip_address("fe80::1"), metric=1024, protocol=LEARNED, expires_at=900)
    goal, nic = replace(FULL, routes=(learned,)), replace(BARE, routes=(learned,))
    first = [step for step in steps(goal, nic, BRIDGE) if isinstance(step.item, AdapterRoute)]
    assert first == [AddItem(BRIDGE, learned.moved), RemoveItem(nic, learned)]
    assert learned.moved.metric == 1025

    both = replace(BRIDGE, addresses=FULL.addresses, routes=(learned.moved, replace(learned, expires_at=1800)))
    assert list(steps(goal, BARE, both)) == [RemoveItem(both, learned.moved)]


def test_a_lifetime_that_runs_down_is_not_a_difference():
    later = replace(FULL, addresses=(replace(NODE_IP, valid_until=101), VIRTUAL))
    assert alike(replace(FULL, addresses=(replace(NODE_IP, valid_until=100), VIRTUAL)), later)
    assert not alike(replace(FULL, addresses=(replace(NODE_IP, valid_until=200), VIRTUAL)), later)
    assert not alike(FULL, later)


def test_a_new_node_ip_on_the_bridge_interface_is_used():
    renumbered = AdapterAddress(ip_interface("192.0.2.6/24"))
    bridge = replace(BRIDGE, addresses=(renumbered,), routes=(DEFAULT, OTHER))
    assert uplink_with_all(SETTLED, BARE, bridge, "today", [renumbered.ip]).addresses == (renumbered,)


def test_items_of_others_on_the_bridge_interface_are_ignored():
    bridge = replace(
        BRIDGE, addresses=(NODE_IP, VIRTUAL, AdapterAddress(ip_interface("192.0.2.200/32"))), routes=(DEFAULT, OTHER)
    )
    assert uplink_with_all(SETTLED, BARE, bridge, "today") == FULL


def test_steps_are_described_in_words():
    goal = replace(FULL, routes=(DEFAULT, ON_LINK, DEFAULT6))
    assert [str(step) for step in steps(goal, goal, BRIDGE)] == [
        "add address 192.0.2.5/24 to br-int",
        "add address 192.0.2.77/24 to br-int",
        "add route 198.51.100.7/32 to br-int",
        "remove route 198.51.100.7/32 from eth0",
        "add route 0.0.0.0/0 via 192.0.2.1 to br-int",
        "remove route 0.0.0.0/0 via 192.0.2.1 from eth0",
        "move route ::/0 via fe80::1 to br-int",
        "remove address 192.0.2.77/24 from eth0",
        "remove address 192.0.2.5/24 from eth0",
    ]


addresses = st.lists(st.integers(1, 5).map(lambda i: AdapterAddress(ip_interface(f"192.0.2.{i}/24"))), unique=True).map(
    tuple
)
routes = st.lists(
    st.builds(
        AdapterRoute,
        st.integers(1, 3).map(lambda i: ip_network(f"10.{i}.0.0/16")),
        st.none() | st.just(ip_address("192.0.2.1")),
        metric=st.sampled_from([0, 100]),
    ),
    unique_by=lambda route: (route.destination, route.metric),
).map(tuple)
holdings = st.tuples(addresses, routes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    on_uplink=holdings, on_bridge=holdings, recorded=st.none() | holdings, same_boot=st.booleans(), whole=st.booleans()
)
def test_a_move_is_complete_and_every_address_is_always_on_an_interface(
    on_uplink, on_bridge, recorded, same_boot, whole
):
    uplink = replace(BARE, addresses=on_uplink[0], routes=on_uplink[1])
    bridge = replace(BRIDGE, addresses=on_bridge[0], routes=on_bridge[1])
    record = None
    if recorded is not None:
        known = replace(BARE, addresses=recorded[0], routes=recorded[1])
        record = UplinkRecord(known, "br-int", "today" if same_boot else "yesterday", settled_on=7 if whole else None)
    goal = uplink_with_all(record, uplink, bridge, "today")

    for source, target in ((uplink, bridge), (bridge, uplink)):
        there: dict[str, set[Any]] = {
            "eth0": {*uplink.addresses, *uplink.routes},
            "br-int": {*bridge.addresses, *bridge.routes},
        }
        held_by_somebody = {a for a in goal.addresses if any(a in items for items in there.values())}
        for step in steps(goal, source, target):
            match step:
                case AddItem(to, item):
                    assert item not in there[to.name]
                    there[to.name].add(item)
                case RemoveItem(by, item):
                    there[by.name].remove(item)
            assert all(any(a in items for items in there.values()) for a in held_by_somebody)
        assert {a.ip for a in goal.addresses} <= {i.ip for i in there[target.name] if not isinstance(i, AdapterRoute)}
        assert {(r.destination, r.metric) for r in goal.routes} <= {
            (r.destination, r.metric) for r in there[target.name] if isinstance(r, AdapterRoute)
        }
        assert not set(goal.addresses) & there[source.name]
        assert not {(r.destination, r.metric) for r in goal.routes} & {
            (r.destination, r.metric) for r in there[source.name] if isinstance(r, AdapterRoute)
        }


def test_an_uplink_has_the_best_route_to_each_destination_of_the_main_table():
    worse = replace(DEFAULT, via=ip_address("192.0.2.2"), metric=200)
    private = replace(OTHER, table=7)
    multipath = AdapterRoute(ip_network("10.9.0.0/16"), hops=(NextHop(ip_address("192.0.2.9")),))
    adapter = replace(FULL, routes=(worse, DEFAULT, private, multipath, ON_LINK))
    assert set(adapter.uplink.routes) == {
        Route(ip_network("0.0.0.0/0"), "eth0", ip_address("192.0.2.1")),
        Route(ip_network("198.51.100.7/32"), "eth0"),
    }
    assert adapter.uplink.addresses == (NODE_IP.interface, VIRTUAL.interface)
