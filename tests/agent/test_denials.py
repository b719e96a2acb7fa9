"""Denied connections are logged once, with the rules that deny them."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from windlass.agent import denials
from windlass.agent.denials import AGAIN, DenialLog
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.host.forwarded_clients import ForwardedClient
from windlass.model.prefixes import prefix_of
from windlass.model.services import Endpoint, Protocol
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.directories import PeerNode, SelectablePod
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.switch.packet_headers import PacketHeaders, packet_headers

WEB, CLIENT, OUTSIDE, NODE = (ip_address(text) for text in ("10.1.0.2", "10.1.0.3", "203.0.113.9", "192.168.0.2"))


def frame(source, destination, protocol=6, source_port=40000, port=80):
    ports = struct.pack("!HH", source_port, port) + bytes(16)
    if source.version == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(ports), 0, 0, 64, protocol, 0)
        return bytes(12) + b"\x08\x00" + head + source.packed + destination.packed + ports
    head = struct.pack("!IHBB", 6 << 28, len(ports), protocol, 64)
    return bytes(12) + b"\x86\xdd" + head + source.packed + destination.packed + ports


def compiler() -> PolicyCompiler:
    made = PolicyCompiler("node-1")
    made.set_namespace("shop", {})
    made.set_node("node-2", PeerNode("node-2", (), (prefix_of(NODE),)))
    for name, address in (("web", WEB), ("client", CLIENT)):
        made.set_pod(f"shop/{name}", SelectablePod("shop", name, (("app", name),), (prefix_of(address),)), local=True)
    policy = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": 443}]}]},
    }
    made.set_policy("np", read_network_policy(msgspec.convert({"kind": "NetworkPolicy", **policy}, NetworkPolicy))[0])
    deny = {
        "tier": "Admin",
        "priority": 1,
        "subject": {"pods": {"podSelector": {"matchLabels": {"app": "client"}}}},
        "egress": [{"name": "no-world", "action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}]}],
    }
    document = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "world"}, "spec": deny}
    made.set_policy("cnp", read_cluster_network_policy(msgspec.convert(document, ClusterNetworkPolicy))[0])
    made.settle()
    return made


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def denial_log() -> tuple[DenialLog, Clock]:
    clock = Clock()
    log = DenialLog(clock)
    log.compiler = compiler()
    return log, clock


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (frame(CLIENT, WEB), "shop/client to shop/web, TCP 80: NetworkPolicy shop/web"),
        (frame(NODE, WEB), "Node node-2 to shop/web, TCP 80: NetworkPolicy shop/web"),
        (frame(OUTSIDE, WEB, protocol=1), "203.0.113.9 to shop/web, without ports: NetworkPolicy shop/web"),
        (
            frame(CLIENT, OUTSIDE, protocol=17, port=53),
            "shop/client to 203.0.113.9, UDP 53: ClusterNetworkPolicy world egress[0] (no-world)",
        ),
    ],
)
def test_a_denied_connection_is_logged_with_the_rules_that_deny_it(packet, said):
    structlog.reset_defaults()  # an earlier test may have raised the log level
    log, _ = denial_log()
    with capture_logs() as lines:
        log.note(packet)
    assert [str(denial) for denial in log.recent] == [said]
    [line] = lines
    assert line["event"] == "denied by policy"
    assert ", ".join(line["rules"]) in said


def test_a_connection_is_logged_once_in_a_while_although_its_client_retries():
    log, clock = denial_log()
    log.note(frame(CLIENT, WEB))
    log.note(frame(CLIENT, WEB))
    assert len(log.recent) == 1
    log.note(frame(CLIENT, WEB, source_port=40001))
    clock.now += AGAIN
    log.note(frame(CLIENT, WEB))
    assert log.counted == {("ingress", "NetworkPolicy shop/web"): 3}


def test_counters_of_rules_that_denied_nothing_for_long_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(denials, "COUNTED", 1)
    log, _ = denial_log()
    log.note(frame(CLIENT, OUTSIDE))
    log.note(frame(CLIENT, WEB))
    assert log.counted == {("ingress", "NetworkPolicy shop/web"): 1}


def test_a_line_of_the_log_names_a_few_rules_only():
    rules = tuple(f"NetworkPolicy shop/{number:02}" for number in range(12))
    denial = denials.Denial("ingress", "shop/web", "shop/client", "TCP", 80, rules)
    assert str(denial).endswith("NetworkPolicy shop/08, NetworkPolicy shop/09, and 2 more")
    assert denials.Denial("ingress", "shop/web", "shop/client", "TCP", 80, rules[:10]).named_rules == list(rules[:10])


def test_a_denied_client_of_the_hosts_forwarder_is_logged_once_whatever_its_port():
    log, _ = denial_log()
    for port in (40000, 40001):
        log.note_forwarded(Protocol.TCP, ForwardedClient(OUTSIDE, port), Endpoint.at(WEB, 80))
    assert [str(denial) for denial in log.recent] == ["203.0.113.9 to shop/web, TCP 80: NetworkPolicy shop/web"]


@pytest.mark.parametrize("packet", [b"", bytes(40), frame(CLIENT, WEB, port=443), frame(OUTSIDE, NODE)])
def test_packets_that_no_policy_denies_any_more_are_not_logged(packet):
    log, _ = denial_log()
    log.note(packet)
    assert not log.recent


def test_headers_of_both_families_are_read():
    one, other = ip_address("fd00::1"), ip_address("fd00::2")
    assert packet_headers(frame(one, other, 132)) == PacketHeaders(one, other, Protocol.SCTP, 40000, 80)
    assert packet_headers(frame(WEB, CLIENT, 1)) == PacketHeaders(WEB, CLIENT, None)
    assert packet_headers(frame(WEB, CLIENT)[:36]) == PacketHeaders(WEB, CLIENT, Protocol.TCP)
