"""Which UDP conntrack entries a change of a Service makes stale: none of an endpoint that still serves."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem, TrafficMode, TunnelType
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedPort, ServedService
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.stale_connections import ENDPOINTS_APART, has_udp, stale
from windlass.pipeline.tracking import POD_ZONE

NODE = LocalNode(
    name="node-1",
    mode=TrafficMode.ENCAP,
    tunnel=TunnelType.GENEVE,
    os=OperatingSystem.LINUX,
    addresses={Family.IPV4: ip_interface("10.176.25.11/24"), Family.IPV6: ip_interface("fd00:10:176:25::11/64")},
    pod_cidrs={Family.IPV4: ip_network("172.16.1.0/24"), Family.IPV6: ip_network("fd00:172:16:1::/64")},
    uplink_mac="02:00:00:00:00:01",
    other_addresses=(ip_address("10.176.27.11"),),
)
CLUSTER_IP = Frontend(Reach.CLUSTER_IP, ip_address("10.96.0.1"), 53)
NODE_PORT = Frontend(Reach.NODE_PORT, None, 30053)
EXTERNAL = Frontend(Reach.EXTERNAL, ip_address("192.0.2.1"), 53)


def dns(
    *pods: int, frontends: tuple[Frontend, ...] = (CLUSTER_IP,), protocol: Protocol = Protocol.UDP
) -> ServedService:
    """A Service with endpoints 172.16.2.<pod>:5353."""
    serving = tuple(Endpoint.at(ip_address(f"172.16.2.{pod}"), 5353) for pod in pods)
    port = ServedPort("dns", protocol, Family.IPV4, frontends, serving, (), bool(pods), serving=serving)
    return ServedService("default", "dns", (port,), (CLUSTER_IP.address,))


def words(before: ServedService | None, after: ServedService | None, node: LocalNode = NODE) -> list[str]:
    return sorted(
        f"{one.to or '*'}:{one.to_port}"
        + (f" at {one.replies_from}:{one.replies_from_port}" if one.replies_from else "")
        for one in stale(before, after, node)
        if (one.zone, one.protocol) == (POD_ZONE, Protocol.UDP)
    )


@pytest.mark.parametrize(
    ("before", "after", "forgotten"),
    [
        (dns(1, 2), dns(1, 2), []),
        (dns(1), dns(1, 2), []),
        (dns(1, 2), dns(2), ["10.96.0.1:53 at 172.16.2.1:5353"]),
        (dns(1, 2), dns(3), ["10.96.0.1:53 at 172.16.2.1:5353", "10.96.0.1:53 at 172.16.2.2:5353"]),
        (dns(1, 2), dns(), ["10.96.0.1:53"]),
        (dns(), dns(1), []),  # without an endpoint, nothing was tracked
        (dns(1), None, ["10.96.0.1:53"]),
        (None, dns(1), ["10.96.0.1:53 at 10.96.0.1:53"]),  # from before the Service existed, so not translated
        (None, dns(), ["10.96.0.1:53 at 10.96.0.1:53"]),
        (dns(1, 2, protocol=Protocol.TCP), dns(1, protocol=Protocol.TCP), []),
        (dns(1, protocol=Protocol.SCTP), None, []),
        (dns(1, protocol=Protocol.TCP), dns(1), ["10.96.0.1:53 at 10.96.0.1:53"]),
        (dns(*range(1, 20)), dns(1), ["10.96.0.1:53"]),
        (None, None, []),
    ],
)
def test_the_table(before, after, forgotten):
    assert words(before, after) == forgotten


def test_frontends_are_compared_one_by_one():
    both = (CLUSTER_IP, EXTERNAL)
    assert words(dns(1, 2, frontends=both), dns(2, frontends=both)) == [
        "10.96.0.1:53 at 172.16.2.1:5353",
        "192.0.2.1:53 at 172.16.2.1:5353",
        "240.0.2.1:53 at 172.16.2.1:5353",
    ]
    assert words(dns(1, 2), dns(2, frontends=both)) == [
        "10.96.0.1:53 at 172.16.2.1:5353",
        "192.0.2.1:53 at 192.0.2.1:53",
        "240.0.2.1:53 at 240.0.2.1:53",
    ]
    assert words(dns(1, frontends=both), dns(1)) == ["192.0.2.1:53", "240.0.2.1:53"]


def test_a_node_port_is_at_every_address_of_the_node_that_serves_it():
    ports = (NODE_PORT,)
    everywhere = ["10.176.25.11:30053", "10.176.27.11:30053", "169.254.169.110:30053"]
    assert words(None, dns(1, frontends=ports)) == [f"{one} at {one}" for one in everywhere]
    assert words(dns(1, frontends=ports), None) == everywhere
    assert words(dns(1, 2, frontends=ports), dns(2, frontends=ports)) == ["*:30053 at 172.16.2.1:5353"]
    some = replace(NODE, node_port_networks=(ip_network("10.176.25.0/24"),))
    assert words(dns(1, frontends=ports), None, some) == ["10.176.25.11:30053", "169.254.169.110:30053"]


def test_an_external_address_has_a_stand_in_for_the_node_that_has_it_itself():
    own = (Frontend(Reach.EXTERNAL, ip_address("10.176.25.11"), 53),)
    assert words(dns(1, frontends=own), None) == ["10.176.25.11:53", "250.176.25.11:53"]
    assert words(dns(1, 2, frontends=own), dns(2, frontends=own)) == [
        "10.176.25.11:53 at 172.16.2.1:5353",
        "250.176.25.11:53 at 172.16.2.1:5353",
    ]


def test_a_terminating_endpoint_or_one_that_hints_leave_out_keeps_its_connections():
    before = dns(1, 2)
    (port,) = before.ports
    chosen = altered(port, endpoints=port.endpoints[:1])  # both still serve, but new connections go to one
    assert words(before, altered(before, ports=(chosen,))) == []


def test_another_port_of_the_same_pod_is_another_endpoint():
    before = dns(1, 2)
    (port,) = before.ports
    serving = (Endpoint.at(ip_address("172.16.2.1"), 5354), port.serving[1])
    assert words(before, altered(before, ports=(altered(port, serving=serving),))) == [
        "10.96.0.1:53 at 172.16.2.1:5353"
    ]


def test_a_family_that_the_node_does_not_have_is_not_tracked():
    only_ipv6 = replace(NODE, pod_cidrs={Family.IPV6: NODE.pod_cidrs[Family.IPV6]})
    assert words(dns(1), None, only_ipv6) == []


def test_only_services_with_udp_ports_matter():
    assert has_udp(dns(1))
    assert not has_udp(dns(1, protocol=Protocol.TCP))
    assert not has_udp(None)


PODS = st.sets(st.integers(1, 2 * ENDPOINTS_APART))
FRONTENDS = st.sets(st.sampled_from([CLUSTER_IP, NODE_PORT, EXTERNAL])).map(tuple)
SERVICES = st.none() | st.builds(lambda pods, doors: dns(*sorted(pods), frontends=doors), PODS, FRONTENDS)


def matches(one: Flush, frontend: Frontend, pod: int) -> bool:
    at = frontend.address or NODE.addresses[Family.IPV4].ip
    return (
        one.to in {None, at}
        and one.to_port == frontend.port
        and one.replies_from in {None, ip_address(f"172.16.2.{pod}")}
        and one.replies_from_port in {0, 5353}
    )


@given(SERVICES, SERVICES)
def test_stale_entries_are_deleted_and_with_few_changes_no_others(before, after):
    forgotten = stale(before, after, NODE)
    assert len(set(forgotten)) == len(forgotten)
    now = {
        (frontend, int(str(endpoint.address).rpartition(".")[2]))
        for port in (after.ports if after else ())
        for frontend in port.frontends
        for endpoint in port.serving
    }
    gone = len(before.ports[0].serving if before else ()) > ENDPOINTS_APART
    for port in before.ports if before else ():
        for frontend in port.frontends:
            for endpoint in port.serving:
                pod = int(str(endpoint.address).rpartition(".")[2])
                is_forgotten = any(matches(one, frontend, pod) for one in forgotten)
                if (frontend, pod) not in now:
                    assert is_forgotten
                elif not gone:
                    assert not is_forgotten


def test_windows_keeps_its_entries():
    """With one entry, its datapath would forget the translations of all connections of the zone."""
    windows = replace(NODE, os=OperatingSystem.WINDOWS)
    assert words(dns(1), dns(2)) != []
    assert words(dns(1), dns(2), windows) == []
