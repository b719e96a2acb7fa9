"""Cyclonus' simulation of NetworkPolicies agrees with the oracle and with the compiler."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest

from policy_worlds import NAMESPACES, OWN_NODE, compiled, pod_key
from windlass.cluster.policy_objects import NetworkPolicy
from windlass.model.port_sets import contains
from windlass.model.services import Protocol
from windlass.policy.oracle import PolicyPacket, judge
from windlass.policy.worlds import PolicyPod, PolicyWorld

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass"
MATCHER = CACHE / "cyclonus" / "matcher"
SETS, PACKETS = 1_000, 100  # random sets of policies, and packets for each set
OUTSIDE = ("203.0.113.9", "203.0.113.1", "10.200.0.1", "198.51.100.1")
BLOCKS = ("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/30", "203.0.113.0/24", "203.0.113.8/29", "198.51.100.1/32")


class Draw:
    """Policies that an API server would accept, with many rules that overlap."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - no secret

    def maybe(self, chance: float) -> bool:
        return self.dice.random() < chance

    def labels(self) -> dict[str, str]:
        choices = {"app": self.dice.choice(["web", "db"]), "tier": self.dice.choice(["front", "back"])}
        some = {key: value for key, value in choices.items() if self.maybe(0.6)}
        return {**some, "zone": self.dice.choice(["a", "b"])}

    def selector(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.maybe(0.4):
            found["matchLabels"] = {key: value for key, value in self.labels().items() if key != "zone"}
        if self.maybe(0.3):
            found["matchExpressions"] = [self.requirement()]
        return found

    def requirement(self) -> dict[str, Any]:
        match self.dice.randrange(4):
            case 0:
                return {"key": self.dice.choice(["app", "tier"]), "operator": "Exists"}
            case 1:
                return {"key": self.dice.choice(["app", "tier"]), "operator": "DoesNotExist"}
            case 2:
                # Only with a label that all Pods have: NotIn matches a missing label in Kubernetes, not in Cyclonus.
                return {"key": "zone", "operator": "NotIn", "values": [self.dice.choice(["a", "b", "c"])]}
        values = self.dice.sample(["web", "db", "front", "back"], self.dice.randint(1, 2))
        return {"key": self.dice.choice(["app", "tier"]), "operator": "In", "values": values}

    def peer(self) -> dict[str, Any]:
        match self.dice.randrange(4):
            case 0:
                return {"podSelector": self.selector()}
            case 1:
                return {"namespaceSelector": self.selector()}
            case 2:
                return {"namespaceSelector": self.selector(), "podSelector": self.selector()}
        cidr = self.dice.choice(BLOCKS)
        inner = [one for one in BLOCKS if one != cidr and _in(one, cidr)]
        excepts = self.dice.sample(inner, min(len(inner), self.dice.randint(0, 2)))
        return {"ipBlock": {"cidr": cidr, **({"except": excepts} if excepts else {})}}

    def port(self) -> dict[str, Any]:
        found: dict[str, Any] = {"protocol": self.dice.choice(["TCP", "UDP", "SCTP"])}
        match self.dice.randrange(4):
            case 0:
                found["port"] = self.dice.choice([80, 81, 82])
            case 1:
                found["port"] = self.dice.choice(["http", "dns"])
            case 2:
                found |= {"port": 80, "endPort": self.dice.choice([81, 82])}
        return found

    def rules(self, peers: str) -> list[dict[str, Any]]:
        return [
            {
                **({peers: [self.peer() for _ in range(self.dice.randint(1, 2))]} if self.maybe(0.8) else {}),
                **({"ports": [self.port() for _ in range(self.dice.randint(1, 2))]} if self.maybe(0.6) else {}),
            }
            for _ in range(self.dice.randint(0, 2))
        ]

    def policy(self, number: int) -> dict[str, Any]:
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"p{number}", "namespace": self.dice.choice(NAMESPACES)},
            "spec": {
                "podSelector": self.selector(),
                "policyTypes": self.dice.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]]),
                "ingress": self.rules("from"),
                "egress": self.rules("to"),
            },
        }

    def world(self) -> tuple[PolicyWorld, list[dict[str, Any]]]:
        documents = [self.policy(number) for number in range(self.dice.randint(1, 4))]
        pods = tuple(
            PolicyPod(
                self.dice.choice(NAMESPACES),
                f"pod-{number}",
                OWN_NODE,
                (IPv4Address("10.1.0.1") + number,),
                self.labels(),
                (("http", "TCP", self.dice.choice([80, 81])), ("dns", "UDP", 82)),
            )
            for number in range(5)
        )
        namespaces = {name: self.labels() for name in NAMESPACES}
        policies = [msgspec.convert(document, NetworkPolicy) for document in documents]
        return PolicyWorld(pods, namespaces, network_policies=policies), documents

    def packet(self, world: PolicyWorld) -> tuple[PolicyPacket, str]:
        """With the name of its port; never from an address to itself, for which Cyclonus has no exception."""
        addresses = [str(pod.addresses[0]) for pod in world.pods] + list(OUTSIDE)
        source, destination = self.dice.sample(addresses, 2)
        protocol, port = self.dice.choice(["TCP", "UDP", "SCTP"]), self.dice.choice([79, 80, 81, 82])
        packet = PolicyPacket(ip_address(source), ip_address(destination), protocol, port)
        named = [
            name
            for pod in world.pods
            if packet.destination in pod.addresses
            for name, of, number in pod.named_ports
            if (of, number) == (protocol, port)
        ]
        return packet, named[0] if named else ""


def _in(inner: str, outer: str) -> bool:
    return ip_network(inner).subnet_of(ip_network(outer))  # type: ignore[arg-type]


def traffic(world: PolicyWorld, packet: PolicyPacket, port_name: str) -> dict[str, Any]:
    def end(address: object) -> dict[str, Any]:
        pod = next((pod for pod in world.pods if address in pod.addresses), None)
        if pod is None:
            return {"IP": str(address)}
        labels = world.namespaces[pod.namespace]
        internal = {"PodLabels": pod.labels, "NamespaceLabels": labels, "Namespace": pod.namespace}
        return {"IP": str(address), "Internal": internal}

    return {
        "Source": end(packet.source),
        "Destination": end(packet.destination),
        "ResolvedPort": packet.port,
        "ResolvedPortName": port_name,
        "Protocol": packet.protocol,
    }


def questions() -> Iterator[tuple[PolicyWorld, list[dict[str, Any]], list[tuple[PolicyPacket, str]]]]:
    for seed in range(SETS):
        draw = Draw(seed)
        world, documents = draw.world()
        yield world, documents, [draw.packet(world) for _ in range(PACKETS)]


@pytest.mark.skipif(not MATCHER.exists(), reason="cyclonus is not built here: tools/build-cyclonus builds it")
def test_cyclonus_agrees_on_random_policies_and_packets():
    asked = [*questions()]
    lines = (
        json.dumps({"policies": documents, "traffic": [traffic(world, *packet) for packet in packets]})
        for world, documents, packets in asked
    )
    answers = subprocess.run([MATCHER], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    denied = 0
    for (world, documents, packets), answer in zip(asked, answers.splitlines(), strict=True):
        compiler = compiled(world)
        for (packet, _), (ingress, egress) in zip(packets, json.loads(answer), strict=True):
            judgement = judge(world, packet)
            assert (judgement.ingress.allowed, judgement.egress.allowed) == (ingress, egress), (documents, packet)
            for pod in world.pods:
                for direction, own, peer, expected in (
                    (compiler.ingress, packet.destination, packet.source, ingress),
                    (compiler.egress, packet.source, packet.destination, egress),
                ):
                    if own in pod.addresses:
                        allowed = direction.allowed(pod_key(pod), peer)
                        assert contains(allowed, Protocol[packet.protocol], packet.port) == expected
            denied += not (ingress and egress)
    assert 0.1 < denied / (SETS * PACKETS) < 0.9, "policies that allow or deny nearly everything show little"
