"""Which endpoints of a Service a Node uses: one test for each rule of a Service proxy."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import pairwise

import pytest
from api_objects import NODE, endpoint, service, slice_of
from hypothesis import given, settings
from hypothesis import strategies as st
from served_services import DRAINING, port, used

from windlass.cluster.objects import EndpointSlice
from windlass.cluster.services import serve
from windlass.model.families import Family
from windlass.model.services import Endpoint, Protocol

LOCAL, REMOTE = "node-1", "node-2"
READY = {"ready": True, "serving": True, "terminating": False}
GONE = {"ready": False, "serving": False, "terminating": True}


def problems(*slices: EndpointSlice) -> list[str]:
    return [str(problem) for problem in serve(service(), slices, NODE)[1]]


# Which endpoints are those of a port? -----------------------------------------------------------------------------


def test_the_key_is_port_name_and_protocol():
    ports = [{"name": "dns", "port": 53, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    listening = [
        {"name": "dns", "port": 5301, "protocol": "TCP"},
        {"name": "dns", "port": 5302, "protocol": "UDP"},
        {"name": "metrics", "port": 9153, "protocol": "TCP"},
    ]
    served, _ = serve(service(ports=ports), [slice_of(endpoint("172.16.2.5"), ports=listening)], NODE)
    assert served is not None
    assert [(one.protocol, used(one.endpoints)) for one in served.ports] == [
        (Protocol.TCP, ["172.16.2.5:5301"]),
        (Protocol.UDP, ["172.16.2.5:5302"]),
    ]


def test_the_port_number_is_the_slices_and_never_the_target_port():
    ports = [{"name": "http", "port": 80, "targetPort": 9999}]
    one = slice_of(endpoint("172.16.2.5"), ports=[{"name": "http", "port": 8080}])
    other = slice_of(endpoint("172.16.2.6"), name="web-2", ports=[{"name": "http", "port": 8081}])
    assert used(port(one, other, ports=ports).endpoints) == ["172.16.2.5:8080", "172.16.2.6:8081"]


def test_a_port_without_name_or_protocol_is_the_unnamed_tcp_port():
    listening = slice_of(endpoint("172.16.2.5"), ports=[{"name": None, "protocol": None, "port": 8080}])
    assert used(port(listening, ports=[{"port": 80}]).endpoints) == ["172.16.2.5:8080"]
    listening = slice_of(endpoint("172.16.2.5"), ports=[{"name": "", "protocol": "TCP", "port": 8080}])
    assert used(port(listening, ports=[{"port": 80, "name": None}]).endpoints) == ["172.16.2.5:8080"]


def test_all_slices_are_merged_in_a_stable_order():
    slices = [
        slice_of(endpoint("172.16.2.10"), endpoint("172.16.2.9"), name="web-a"),
        slice_of(endpoint("172.16.2.100"), endpoint("172.16.2.2", LOCAL), name="web-b"),
    ]
    merged = port(*slices)
    assert used(merged.endpoints) == [f"172.16.2.{last}:8080" for last in (2, 9, 10, 100)]
    assert [one.local for one in merged.endpoints] == [True, False, False, False]
    assert port(*reversed(slices)) == merged


def test_the_same_address_and_port_in_two_slices_counts_once_and_the_local_one_wins():
    both = [slice_of(endpoint("172.16.2.5")), slice_of(endpoint("172.16.2.5", LOCAL), name="web-2")]
    for slices in (both, both[::-1]):
        assert port(*slices).endpoints == (Endpoint.at(ip_address("172.16.2.5"), 8080, local=True),)
    unready = [slice_of(endpoint("172.16.2.5")), slice_of(endpoint("172.16.2.5", LOCAL, ready=False), name="web-2")]
    assert port(*unready).endpoints == ()


def test_of_duplicates_on_other_nodes_the_more_usable_counts():
    both = [slice_of(endpoint("172.16.2.5", **GONE)), slice_of(endpoint("172.16.2.5", **READY), name="web-2")]
    for slices in (both, both[::-1]):
        assert used(port(*slices).endpoints) == ["172.16.2.5:8080"]


def test_two_spellings_of_an_address_are_one_endpoint():
    slices = slice_of(endpoint("fd00::5"), endpoint("FD00:0:0::05"), family="IPv6")
    assert used(port(slices, clusterIPs=["fd00:96::1"]).endpoints) == ["fd00::5:8080"]


def test_one_address_with_two_ports_is_two_endpoints():
    listening = slice_of(endpoint("172.16.2.5"), ports=[{"name": "http", "port": n} for n in (8081, 8080)])
    assert used(port(listening).endpoints) == ["172.16.2.5:8080", "172.16.2.5:8081"]


def test_only_the_first_address_counts():
    two = endpoint("172.16.2.5") | {"addresses": ["172.16.2.5", "172.16.2.6", "rubbish"]}
    assert used(port(slice_of(two)).endpoints) == ["172.16.2.5:8080"]


@pytest.mark.parametrize("number", [None, 0])
def test_a_slice_port_that_is_nil_or_0_is_ignored(number):
    listening = slice_of(endpoint("172.16.2.5"), ports=[{"name": "http", "port": number}])
    assert port(listening).endpoints == ()


def test_slices_of_fqdns_and_of_headless_services_are_ignored():
    names = slice_of(endpoint("web.example.org"), family="FQDN")
    headless = slice_of(endpoint("172.16.2.5"), name="web-2", **{"service.kubernetes.io/headless": ""})
    assert port(names, headless).endpoints == ()


def test_families_are_independent():
    slices = [slice_of(endpoint("172.16.2.5")), slice_of(endpoint("fd00::5"), name="web-6", family="IPv6")]
    served, reported = serve(service(clusterIPs=["10.96.0.10", "fd00:96::10"]), slices, NODE)
    assert served is not None
    assert reported == []
    assert {one.family: used(one.endpoints) for one in served.ports} == {
        Family.IPV4: ["172.16.2.5:8080"],
        Family.IPV6: ["fd00::5:8080"],
    }
    assert used(port(*slices).endpoints) == ["172.16.2.5:8080"]  # of a Service that is IPv4 only


# Which of them are usable? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "usable"),
    [
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
        ({"ready": True, "serving": None}, True),
        ({"ready": None, "serving": False}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True}, False),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "serving": None, "terminating": True}, True),
        ({"ready": False, "serving": False, "terminating": True}, False),
        ({"ready": False, "serving": True, "terminating": None}, False),
    ],
)
def test_an_absent_condition_is_ready_and_serving_and_not_terminating(conditions, usable):
    only = port(slice_of(endpoint("172.16.2.5", **conditions)))
    assert (len(only.endpoints) == 1, only.anywhere) == (usable, usable)


def test_draining_endpoints_are_used_only_if_none_is_ready():
    ending, ready = endpoint("172.16.2.5", **DRAINING), endpoint("172.16.2.6", **READY)
    assert used(port(slice_of(ending, ready)).endpoints) == ["172.16.2.6:8080"]
    assert used(port(slice_of(ending)).endpoints) == ["172.16.2.5:8080"]


def test_the_cluster_and_the_local_set_are_selected_separately():
    slices = slice_of(endpoint("172.16.1.5", LOCAL, **DRAINING), endpoint("172.16.2.6", REMOTE, **READY))
    only = port(slices, internalTrafficPolicy="Local")
    assert used(only.endpoints) == ["172.16.2.6:8080"]
    assert used(only.local_endpoints) == ["172.16.1.5:8080"]
    slices = slice_of(endpoint("172.16.1.5", LOCAL, **READY), endpoint("172.16.1.6", LOCAL, **DRAINING))
    assert used(port(slices, internalTrafficPolicy="Local").local_endpoints) == ["172.16.1.5:8080"]


def test_without_a_local_policy_there_is_no_local_set():
    """An unused group must not change with each Pod of this Node."""
    assert port(slice_of(endpoint("172.16.1.5", LOCAL))).local_endpoints == ()


def test_without_a_usable_endpoint_anywhere_connections_are_refused():
    assert not port().anywhere
    assert not port(slice_of(endpoint("172.16.2.5", **GONE))).anywhere
    elsewhere = port(slice_of(endpoint("172.16.2.5")), internalTrafficPolicy="Local")
    assert (elsewhere.anywhere, elsewhere.local_endpoints) == (True, ())  # these are dropped


def test_connections_to_serving_endpoints_may_stay():
    slices = slice_of(
        endpoint("172.16.2.5", **READY),
        endpoint("172.16.2.6", **DRAINING),
        endpoint("172.16.2.7", ready=False, serving=True),
        endpoint("172.16.2.8", **GONE),
    )
    only = port(slices)
    assert used(only.endpoints) == ["172.16.2.5:8080"]
    assert used(only.serving) == [f"172.16.2.{last}:8080" for last in (5, 6, 7)]


def test_equal_sets_of_endpoints_are_stored_once():
    only = port(slice_of(endpoint("172.16.2.5"), endpoint("172.16.2.6")))
    assert only.serving is only.endpoints


# Malformed input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("rubbish", "'rubbish' is not an IP address"),
        ("172.16.2.300", "'172.16.2.300' is not an IP address"),
        ("fd00::5", "fd00::5 is not an IPv4 address"),
        ("172.16.02.5", "'172.16.02.5' is not an IP address"),
        ("\0", "'\\x00' is not an IP address"),
        ("127.0.0.1", "127.0.0.1 is a loopback address"),
        ("169.254.169.254", "169.254.169.254 is a link-local address"),
        ("224.0.0.1", "224.0.0.1 is a multicast address"),
        ("0.0.0.0", "0.0.0.0 is an unspecified address"),  # noqa: S104 (an address in a test)
        ("255.255.255.255", "255.255.255.255 is a reserved address"),
        ("::ffff:172.16.2.5", "::ffff:172.16.2.5 is an IPv4-mapped address"),
        ("", "is empty"),
    ],
)
def test_an_unusable_address_removes_only_that_endpoint(address, sentence):
    slices = slice_of(endpoint("172.16.2.4"), endpoint(address), endpoint("172.16.2.6"))
    served, reported = serve(service(), [slices], NODE)
    assert served is not None
    assert used(served.ports[0].endpoints) == ["172.16.2.4:8080", "172.16.2.6:8080"]
    assert [str(problem) for problem in reported] == [
        f"EndpointSlice default/web-1: endpoints[1].addresses: {sentence}; the other endpoints are used"
    ]


def test_addresses_of_another_range_with_the_first_byte_of_a_special_one_are_accepted():
    assert used(port(slice_of(endpoint("169.253.0.1"))).endpoints) == ["169.253.0.1:8080"]


@pytest.mark.parametrize("addresses", [None, []])
def test_an_endpoint_without_address(addresses):
    assert problems(slice_of(endpoint("172.16.2.5") | {"addresses": addresses})) == [
        "EndpointSlice default/web-1: endpoints[0].addresses: is empty; the other endpoints are used"
    ]


def test_a_thousand_bad_addresses_are_one_problem():
    [problem] = problems(slice_of(*[endpoint(f"no-{number}") for number in range(1000)]))
    assert problem.endswith("'no-0' is not an IP address (and 999 more like it); the other endpoints are used")


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            {"ports": [{"name": "http", "port": 70000}]},
            "ports[0].port: 70000 is outside 1-65535; its other ports are used",
        ),
        ({"ports": [{"name": "http", "port": -1}]}, "ports[0].port: -1 is outside 1-65535; its other ports are used"),
        (
            {"ports": [{"name": "http", "port": 80, "protocol": "ICMP"}]},
            "ports[0].protocol: 'ICMP' is not one of TCP, UDP, SCTP; its other ports are used",
        ),
        ({"family": "IPX"}, "addressType: 'IPX' is not one of IPv4, IPv6, FQDN; it is left out"),
        ({"family": None}, "addressType: '' is not one of IPv4, IPv6, FQDN; it is left out"),
    ],
)
def test_a_malformed_slice(bad, sentence):
    assert problems(slice_of(endpoint("172.16.2.5"), **bad)) == [f"EndpointSlice default/web-1: {sentence}"]


# Laws -------------------------------------------------------------------------------------------------------------

entries = st.builds(
    lambda last, node, conditions, hints: endpoint(f"172.16.2.{last}", node, **conditions, **hints),
    st.integers(1, 6),
    st.sampled_from([LOCAL, REMOTE, None]),
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from([True, False, None]) for name in ("ready", "serving", "terminating")}
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "zones": st.lists(st.sampled_from(["zone-a", "zone-b"]), max_size=2),
            "nodes": st.lists(st.sampled_from([LOCAL, REMOTE]), max_size=2),
        },
    ),
)
slices_of_entries = st.lists(st.lists(entries, max_size=5), max_size=4).map(
    lambda parts: [slice_of(*part, name=f"web-{number}") for number, part in enumerate(parts)]
)


@given(slices_of_entries, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_outcome_does_not_depend_on_the_order_of_slices(slices, random):
    """Except that the name of a slice decides if two disagree on the hints of one endpoint."""
    before = port(*slices, internalTrafficPolicy="Local")
    assert [(int(one.address), one.port) for one in before.serving] == sorted(
        (int(one.address), one.port) for one in before.serving
    )
    random.shuffle(slices)
    after = port(*slices, internalTrafficPolicy="Local")
    assert after.local_endpoints == before.local_endpoints
    assert after.serving == before.serving
    assert after.anywhere == before.anywhere


@given(slices_of_entries)
@settings(deadline=None, max_examples=150)
def test_the_rules_as_they_are_written(slices):
    """The same rules in a slow and simple form."""
    best: dict[str, tuple[tuple[bool, int], dict[str, object]]] = {}
    for one in slices:
        for entry in one.endpoints or ():
            conditions = entry.conditions
            ready = conditions is None or conditions.ready in {None, True}
            serving = conditions is None or conditions.serving in {None, True}
            terminating = conditions is not None and conditions.terminating is True
            state = 3 if ready else 2 if serving and terminating else 1 if serving else 0
            rank = (entry.node_name == LOCAL, state)
            address = (entry.addresses or ("",))[0]
            if address not in best or best[address][0] <= rank:
                best[address] = (rank, entry)
    of_state = {
        state: {address: entry for address, ((_, its), entry) in best.items() if its == state} for state in range(4)
    }

    def named(entry, field):
        return {hint.name for hint in (entry.hints and getattr(entry.hints, field)) or ()}

    cluster = set(of_state[3]) or set(of_state[2])
    for field, own in (("for_nodes", "node-1"), ("for_zones", "zone-a")):
        chosen = {address for address, entry in of_state[3].items() if own in named(entry, field)}
        if chosen and all(named(entry, field) for entry in of_state[3].values()):
            cluster = chosen
            break
    here = {address for address, ((local, _), _) in best.items() if local}
    only = port(*slices, internalTrafficPolicy="Local")
    assert {str(one.address) for one in only.endpoints} == cluster
    assert {str(one.address) for one in only.local_endpoints} == (here & set(of_state[3]) or here & set(of_state[2]))
    assert {str(one.address) for one in only.serving} == set(best) - set(of_state[0])
    assert only.anywhere == bool(of_state[3] or of_state[2])
    assert all(one.local == (str(one.address) in here) for one in only.serving)
    assert all(one.address < other.address for one, other in pairwise(only.endpoints))
