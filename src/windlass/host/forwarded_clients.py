"""Clients of NodePorts whose connections the host itself forwards, as on Windows: where each connection goes.

The switch sees such a connection as one of the Node itself: it chooses among all endpoints, and Pods accept it. This is
correct for clients on this host. For all others, this module applies the traffic policy, session affinity and the
ingress policies of this Node's Pods to the client's own address. An endpoint on another Node sees this Node, as it
does for every client of policy Cluster. Nothing here does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import LocalNode, NodeState
from windlass.model.policies import Direction
from windlass.model.port_sets import contains
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedPort, ServedService
from windlass.pipeline.policy_lookups import permitted_ports
from windlass.pipeline.reserved import NODE_PORT_ADDRESS


class ForwardedClient(NamedTuple):
    address: IPAddress
    port: int


class ForwardedDestination(NamedTuple):
    address: IPAddress
    port: int


class Refusal(StrEnum):
    """Why a client was refused, or its connection ended early."""

    NO_ENDPOINT = "no-endpoint"  # none, or none that its traffic policy allows
    POLICY = "policy"
    POD = "pod"  # the switch serves Pods; here they would bypass their egress policies
    UNREACHABLE = "unreachable"  # the connection to the endpoint failed
    EVICTED = "evicted"  # the UDP client that was idle for longest, to make room for another one
    FULL = "full"  # the NodePort has no room for one more TCP connection


class _NodePort(NamedTuple):
    port: ServedPort
    frontend: Frontend

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints that may serve a client from outside."""
        return self.port.local_endpoints if self.frontend.local_only else self.port.endpoints

    @property
    def by_the_switch(self) -> ForwardedDestination:
        return ForwardedDestination(NODE_PORT_ADDRESS[self.port.family], self.frontend.port)


Denied = Callable[[Protocol, ForwardedClient, Endpoint], None]


class ForwardedClients:
    def __init__(self, state: Callable[[], NodeState | None], denied: Denied = lambda *_: None) -> None:
        """`state` returns the state that the switch should have now; `denied` is called for each denied connection."""
        self.refused: Counter[Refusal] = Counter()
        self._state = state
        self._denied = denied
        self._services: Mapping[str, ServedService] | None = None  # those that are indexed
        self._by_port: dict[tuple[Family, Protocol, int], _NodePort] = {}

    @property
    def state(self) -> NodeState | None:
        return self._state()

    def admit(self, protocol: Protocol, port: int, client: ForwardedClient) -> Admission | None:
        """None: the client is refused, and counted."""
        destination = self._destination(protocol, port, client)
        if isinstance(destination, Refusal):
            self.refused[destination] += 1
            return None
        return Admission(self, protocol, port, client, destination, self.state)

    def keeps(self, protocol: Protocol, port: int, client: ForwardedClient, destination: ForwardedDestination) -> bool:
        """Whether an admitted connection may continue. A TCP connection ends with its endpoint, not before."""
        state = self.state
        found = self._node_port(state, protocol, port, client) if state else None
        if state is None or found is None:
            return False
        if _is_host(state.node, client.address):
            return True
        if destination == found.by_the_switch:  # the switch chose the endpoint: it may be any of them
            return all(_admits(state, one, protocol, client.address) for one in _policed(state, found.endpoints))
        endpoint = Endpoint.at(*destination)
        if protocol is Protocol.UDP and not any(_same(endpoint, one) for one in found.port.serving):
            return False
        return _admits(state, endpoint, protocol, client.address)

    def _destination(self, protocol: Protocol, port: int, client: ForwardedClient) -> ForwardedDestination | Refusal:
        state = self.state
        found = self._node_port(state, protocol, port, client) if state else None
        if state is None or found is None:
            return Refusal.NO_ENDPOINT
        if _is_host(state.node, client.address):
            return found.by_the_switch
        if client.address in state.node.pod_cidrs[found.port.family]:
            return Refusal.POD
        endpoints = found.endpoints
        if not endpoints:
            return Refusal.NO_ENDPOINT
        affinity = bool(found.port.affinity_seconds)
        if not (found.frontend.local_only or affinity or _policed(state, endpoints)):
            return found.by_the_switch  # the switch may choose any endpoint
        endpoint = _chosen(endpoints, client, sticky=affinity)
        if not _admits(state, endpoint, protocol, client.address):
            self._denied(protocol, client, endpoint)
            return Refusal.POLICY
        return ForwardedDestination(endpoint.address, endpoint.port)

    def _node_port(self, state: NodeState, protocol: Protocol, port: int, client: ForwardedClient) -> _NodePort | None:
        if state.services is not self._services:
            self._services = state.services
            self._by_port = {
                (served.family, served.protocol, frontend.port): _NodePort(served, frontend)
                for service in state.services.values()
                for served in service.ports
                for frontend in served.frontends
                if frontend.reach is Reach.NODE_PORT
            }
        return self._by_port.get((family_of(client.address), protocol, port))


@dataclass(slots=True)
class Admission:
    """The decision to serve one TCP connection or one UDP client."""

    _clients: ForwardedClients
    _protocol: Protocol
    _port: int
    _client: ForwardedClient
    destination: ForwardedDestination
    _judged_by: NodeState | None

    def holds(self) -> bool:
        """Whether the connection may continue. A new denial ends it, because the switch judges every packet, too."""
        state = self._clients.state
        if state is self._judged_by:
            return True
        if not self._clients.keeps(self._protocol, self._port, self._client, self.destination):
            return False
        self._judged_by = state
        return True

    def fail(self, reason: Refusal) -> None:
        self._clients.refused[reason] += 1


def _admits(state: NodeState, endpoint: Endpoint, protocol: Protocol, client: IPAddress) -> bool:
    """Endpoints that are not Pods of this Node have no policies here."""
    address = endpoint.address
    pods = (pod.key for pod in state.pods.values() if address in pod.addresses)
    permitted = (permitted_ports(state.policies, Direction.INGRESS, pod, client) for pod in pods)
    return all(contains(ports, protocol, endpoint.port) for ports in permitted)


def _policed(state: NodeState, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """The endpoints that are Pods of this Node with an ingress policy."""
    of_pods = state.policies.pods
    isolated = {key for key, policies in of_pods.items() if policies.ingress is not None} if of_pods else set()
    addresses = {a.packed for pod in state.pods.values() if pod.key in isolated for a in pod.addresses}
    return [endpoint for endpoint in endpoints if endpoint.packed in addresses] if addresses else []


def _is_host(node: LocalNode, address: IPAddress) -> bool:
    family = family_of(address)
    return address.is_loopback or address in (*node.own_addresses(family), node.gateway(family))


def _chosen(endpoints: Sequence[Endpoint], client: ForwardedClient, *, sticky: bool) -> Endpoint:
    """With session affinity, a client keeps its endpoint when others are added or removed (rendezvous hashing)."""
    address = client.address.packed
    if sticky:
        return max(endpoints, key=lambda one: blake2b(address + one.packed + one.port.to_bytes(2)).digest())
    return endpoints[crc32(address + client.port.to_bytes(2)) % len(endpoints)]


def _same(one: Endpoint, other: Endpoint) -> bool:
    """Compares addresses and ports only, not whether the endpoint is local."""
    return (one.packed, one.port) == (other.packed, other.port)
