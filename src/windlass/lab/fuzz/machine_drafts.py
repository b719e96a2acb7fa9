"""Drafts of the machines and Pods of a random cluster, and the documents made from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from windlass.lab.fuzz.cluster_views import Document
from windlass.lab.fuzz.object_views import ZONE
from windlass.lab.scenarios.directives import API_VERSION
from windlass.model.families import Family

NAMESPACES = {"blue": "shop"}  # by app; all other apps are in NAMESPACE
NAMESPACE = "default"
TIERS = ("", "front", "back")  # the label that policies select by; empty: none
V4, V6 = Family.IPV4, Family.IPV6


class EndpointState(Enum):
    """The state of an endpoint according to its conditions."""

    READY = "ready"
    UNSAID = "unsaid"  # no conditions, which means ready
    NOT_READY = "not ready"
    DRAINING = "draining"  # terminating and still serving
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class NodeDraft:
    number: int
    families: tuple[Family, ...]  # the primary one first
    segment: int
    second: int = 0  # the segment of its second NIC; 0: none
    second_type: str = "ExternalIP"
    zone: str = ""
    windows: bool = False

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    def main(self, family: Family) -> str:
        return machine_address(family, self.segment, 10 + self.number)

    def other(self, family: Family) -> str:
        return machine_address(family, self.second, 10 + self.number)

    @property
    def addresses(self) -> tuple[str, ...]:
        main = tuple(self.main(family) for family in self.families)
        return (*main, *(self.other(family) for family in self.families)) if self.second else main

    def cidr(self, family: Family) -> str:
        return f"172.16.{self.number}.0/24" if family is V4 else f"fd00:172:16:{self.number}::/64"

    def pod(self, family: Family, number: int) -> str:
        return f"172.16.{self.number}.{number}" if family is V4 else f"fd00:172:16:{self.number}::{number}"

    def document(self) -> Document:
        labels = {ZONE: self.zone} if self.zone else {}
        labels |= {"kubernetes.io/os": "windows"} if self.windows else {}
        addresses = [{"type": "InternalIP", "address": self.main(family)} for family in self.families]
        addresses += [{"type": "Hostname", "address": self.name}]
        if self.second:
            addresses += [{"type": self.second_type, "address": self.other(family)} for family in self.families]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, **({"labels": labels} if labels else {})},
            "spec": {"podCIDRs": [self.cidr(family) for family in self.families]},
            "status": {"addresses": addresses},
        }


@dataclass(frozen=True, slots=True)
class HostDraft:
    name: str
    segment: int
    families: tuple[Family, ...]
    number: int = 36
    ports: tuple[tuple[str, int], ...] = ()

    def address(self, family: Family) -> str:
        return machine_address(family, self.segment, self.number)

    def document(self) -> Document:
        ports = [{"port": port, "protocol": protocol} for protocol, port in self.ports]
        spec = {"addresses": [self.address(family) for family in self.families], **({"ports": ports} if ports else {})}
        return {"apiVersion": API_VERSION, "kind": "ExternalHost", "metadata": {"name": self.name}, "spec": spec}


@dataclass(frozen=True, slots=True)
class PodDraft:
    app: str  # empty: a client
    number: int  # unique among all Pods of all steps
    node: NodeDraft
    ports: tuple[tuple[str, str, int], ...] = ()  # name, protocol, number
    host_network: bool = False
    state: EndpointState = EndpointState.READY
    tier: str = ""

    @property
    def name(self) -> str:
        return f"{self.app or 'client'}-{self.number}"

    @property
    def namespace(self) -> str:
        return NAMESPACES.get(self.app, NAMESPACE)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def address(self, family: Family) -> str:
        return self.node.main(family) if self.host_network else self.node.pod(family, 20 + self.number)

    def port(self, name: str, protocol: str) -> int | None:
        return next((number for n, p, number in self.ports if (n, p) == (name, protocol)), None)

    def document(self) -> Document:
        ports = [{"name": name, "protocol": protocol, "containerPort": number} for name, protocol, number in self.ports]
        status: Document = {}
        if not self.host_network:
            status["podIPs"] = [{"ip": self.address(family)} for family in self.node.families]
        if self.state in {EndpointState.NOT_READY, EndpointState.ENDED}:
            status["conditions"] = [{"type": "Ready", "status": "False"}]
        labels = {**({"app": self.app} if self.app else {}), **({"tier": self.tier} if self.tier else {})}
        ending = self.state in {EndpointState.DRAINING, EndpointState.ENDED}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                **({"labels": labels} if labels else {}),
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {}),
            },
            "spec": {
                "nodeName": self.node.name,
                **({"hostNetwork": True} if self.host_network else {}),
                "containers": [{"name": "main", **({"ports": ports} if ports else {})}],
            },
            **({"status": status} if status else {}),
        }


def machine_address(family: Family, segment: int, number: int) -> str:
    return f"10.176.{segment}.{number}" if family is V4 else f"fd00:10:176:{segment}::{number}"
