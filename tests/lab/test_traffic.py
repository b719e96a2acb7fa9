"""Servers and dialers over a real wire: every protocol and family, every outcome, and what is measured on the way."""

from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import contextmanager
from ipaddress import ip_address

import pytest
from labnet import needs_root

from windlass.host.linux import namespaces
from windlass.lab.probing.dialers import SocketAddress
from windlass.lab.probing.traffic import ProbeTraffic, Traffic
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol

pytestmark = needs_root

SERVER_IPS = {4: "10.7.0.20", 6: "fd07::20"}
CLIENT_IPS = {4: "10.7.0.10", 6: "fd07::10"}
FARAWAY_IPS = {4: "10.8.0.30", 6: "fd08::30"}
ALL_PORTS = [(ProbeProtocol.TCP, 80), (ProbeProtocol.UDP, 53), (ProbeProtocol.SCTP, 36412)]
PORTS = {ProbeProtocol.TCP: 80, ProbeProtocol.UDP: 53, ProbeProtocol.SCTP: 36412, ProbeProtocol.ICMP: 0}

every_protocol = pytest.mark.parametrize("protocol", list(ProbeProtocol))
both_families = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture
async def traffic(underlay, servers, arrivals, lab):
    """The server answers on a port of each protocol."""
    namespace = lab.namespace("host", "server")
    await servers.listen(namespace, "default/web", ALL_PORTS)
    servers.watch(namespace, "default/web")
    return Traffic(arrivals)


@pytest.fixture
def flow(lab):
    def make(protocol, version=4, *, to=SERVER_IPS, port=None, client="client", **more):
        address = SocketAddress(ip_address(to[version]), PORTS[protocol] if port is None else port)
        return ProbeTraffic(lab.namespace("host", client), protocol, address, **more)

    return make


DROP_ALL_BUT_NEIGHBOUR_DISCOVERY = """
table inet lab {
  chain input {
    type filter hook input priority 0; policy drop;
    icmpv6 type nd-neighbor-solicit accept
  }
}
"""


@contextmanager
def dropping_everything_to(lab, machine):
    """Drops packets silently, as a policy does."""
    inside(lab, machine, "nft", DROP_ALL_BUT_NEIGHBOUR_DISCOVERY)
    yield
    inside(lab, machine, "nft", "delete table inet lab")


def inside(lab, machine, *command):
    with namespaces.entered(namespaces.path_of(lab.namespace("host", machine))):
        subprocess.run(command, check=True)


@every_protocol
@both_families
async def test_a_connection_reports_the_backend_and_the_client_address_that_it_saw(traffic, flow, protocol, version):
    observation = await traffic.observe(flow(protocol, version, connections=3))
    assert observation.outcome is ProbeOutcome.CONNECTED
    assert observation.backends == {"default/web": 3}
    assert observation.client_addresses == [CLIENT_IPS[version]]
    assert {attempt.local for attempt in observation.attempts} == {CLIENT_IPS[version]}


@every_protocol
@both_families
async def test_the_payload_is_echoed_byte_for_byte(traffic, flow, protocol, version):
    size = 1_000_000 if protocol is ProbeProtocol.TCP else 20_000
    (attempt,) = (await traffic.observe(flow(protocol, version, bytes=size))).attempts
    assert (attempt.outcome, attempt.fault) == (ProbeOutcome.CONNECTED, "")


@every_protocol
async def test_a_machine_behind_the_router_is_reached(traffic, flow, protocol):
    observation = await traffic.observe(flow(protocol, 6, client="faraway"))
    assert observation.client_addresses == [FARAWAY_IPS[6]]


@pytest.mark.parametrize("protocol", [ProbeProtocol.TCP, ProbeProtocol.UDP, ProbeProtocol.SCTP])
@both_families
async def test_a_closed_port_refuses_every_connection(traffic, flow, protocol, version):
    observation = await traffic.observe(flow(protocol, version, port=9, connections=10))
    assert {attempt.outcome for attempt in observation.attempts} == {ProbeOutcome.REFUSED}


async def test_a_machine_without_sctp_refuses_it(traffic, flow):
    observation = await traffic.observe(flow(ProbeProtocol.SCTP, to={4: "10.8.0.30"}))
    assert observation.outcome is ProbeOutcome.REFUSED


async def test_no_answer_is_a_timeout(traffic, flow, lab):
    """A neighbour that does not exist and a forged packet that does not arrive are timeouts, too."""
    flows = [flow(protocol, version, connections=5) for protocol in ProbeProtocol for version in (4, 6)]
    flows.append(flow(ProbeProtocol.TCP, to={4: "10.7.0.99"}))
    flows.append(flow(ProbeProtocol.UDP, source=ip_address("10.7.0.77")))
    with dropping_everything_to(lab, "server"):
        observations = await asyncio.gather(*map(traffic.observe, flows))
    outcomes = {attempt.outcome for observation in observations for attempt in observation.attempts}
    assert outcomes == {ProbeOutcome.TIMEOUT}


async def test_an_unreachable_that_the_router_sends_is_a_refusal(traffic, flow):
    observation = await traffic.observe(flow(ProbeProtocol.UDP, to={4: "192.0.2.1"}))
    assert observation.outcome is ProbeOutcome.REFUSED


async def test_a_missing_route_is_an_error_not_an_outcome(traffic, flow, lab):
    inside(lab, "client", "ip", "-6", "route", "del", "default")
    (attempt,) = (await traffic.observe(flow(ProbeProtocol.TCP, 6, to=FARAWAY_IPS))).attempts
    inside(lab, "client", "ip", "-6", "route", "add", "default", "via", "fd07::1")
    assert attempt.fault == "the client has no route to fd08::30"


@every_protocol
@both_families
async def test_a_forged_packet_is_connected_if_the_server_saw_it(traffic, flow, arrivals, lab, protocol, version):
    source = ip_address({4: "10.7.0.77", 6: "fd07::77"}[version])
    with arrivals.watching_syns([(lab.namespace("host", "server"), "default/web")]):
        observation = await traffic.observe(flow(protocol, version, source=source, connections=2))
    assert observation.backends == {"default/web": 2}
    assert observation.client_addresses == [str(source)]


async def test_a_server_that_has_ended_refuses_and_cuts_its_connections(traffic, flow, servers):
    held = await traffic.hold(flow(ProbeProtocol.TCP))
    servers.close("default/web")
    observation = await traffic.observe(flow(ProbeProtocol.TCP))
    assert observation.outcome is ProbeOutcome.REFUSED
    assert (await held.end()).broken


async def test_two_servers_cannot_have_one_port(traffic, servers, lab):
    with pytest.raises(LabError, match="default/other cannot answer on TCP port 80: Address already in use"):
        await servers.listen(lab.namespace("host", "server"), "default/other", [(ProbeProtocol.TCP, 80)])
    with pytest.raises(LabError, match="SCTP port 36412"):
        await servers.listen(lab.namespace("host", "server"), "default/other", [(ProbeProtocol.SCTP, 36412)])


@every_protocol
async def test_a_held_connection_measures_its_longest_silence(traffic, flow, protocol):
    held = await traffic.hold(flow(protocol))
    await traffic.observe(flow(ProbeProtocol.TCP, bytes=100_000))
    observation = await held.end()
    assert observation.broken == ""
    assert 0 < observation.max_gap < 1


async def test_a_rate_counts_unanswered_connections(traffic, flow, servers):
    rated = traffic.rate(flow(ProbeProtocol.TCP), per_second=200)
    await traffic.observe(flow(ProbeProtocol.TCP, connections=50))
    good = len((await rated.end()).attempts)
    assert good
    servers.close("default/web")
    refused = traffic.rate(flow(ProbeProtocol.TCP), per_second=200)
    await traffic.observe(flow(ProbeProtocol.TCP, connections=50))
    observation = await refused.end()
    assert observation.failures == len(observation.attempts) > 0


async def test_a_pause_of_this_process_is_no_failure_of_a_rate(traffic, flow):
    rated = traffic.rate(flow(ProbeProtocol.TCP), per_second=1000)
    await traffic.observe(flow(ProbeProtocol.TCP, connections=50))
    time.sleep(1.2)  # noqa: ASYNC251 - the machine is busy: nothing here runs, the server included
    observation = await rated.end()
    assert observation.attempts
    assert observation.failures == 0


async def test_a_thousand_connections_side_by_side_all_connect(traffic, flow):
    flows = [flow(protocol, version, connections=125) for protocol in ProbeProtocol for version in (4, 6)]
    observations = await asyncio.gather(*map(traffic.observe, flows))
    assert {observation.outcome for observation in observations} == {ProbeOutcome.CONNECTED}
