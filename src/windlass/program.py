"""NodeState -> Program: all flows, groups and meters of a Node, each owned by the object that needs it.

Pure. A change of one object recomputes only `part(state, owner)` of that owner. What an owner no longer needs is absent
from its part, and so removed from the switch: there is no uninstall code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from windlass.model.nodes import LocalNode, NodeState
from windlass.model.policies import PeerEntry, PodPolicies, PolicyPorts, PolicySubject
from windlass.model.services import ServedService
from windlass.openflow.flows import Flow, Group, Meter
from windlass.pipeline import (
    connections,
    endpoint_groups,
    exhaustion,
    frontends,
    host_endpoints,
    icmp_errors,
    pods,
    policies,
    ports,
    rejects,
    responders,
    routing,
    sctp,
    service_snat,
    snat,
    tunnels,
)
from windlass.pipeline.layout import LAYOUT


class OwnerKind(Enum):
    NODE = "Node"
    PEER = "Peer"
    POD = "Pod"
    SERVICE = "Service"
    POLICY_SUBJECT = "policies"
    POLICY_PORTS = "policy ports"
    POLICY_PEER = "policy peers"

    __hash__ = object.__hash__  # see Family


class Owner(Struct, frozen=True, gc=False, order=True, cache_hash=True):
    """The object that needs a flow. `name` is its key in NodeState."""

    kind: OwnerKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


class Part(Struct, frozen=True):
    """What one owner needs in the switch."""

    flows: tuple[Flow, ...] = ()
    groups: tuple[Group, ...] = ()
    meters: tuple[Meter, ...] = ()


class ServicePart(Struct, frozen=True, gc=False):
    """The part of a Service, computed whenever it is read: a cluster may have ten thousand Services."""

    node: LocalNode
    service: ServedService

    @property
    def flows(self) -> tuple[Flow, ...]:
        return (*frontends.service_flows(self.node, self.service), *routing.service_flows(self.node, self.service))

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(endpoint_groups.service_groups(self.node, self.service))

    @property
    def meters(self) -> tuple[Meter, ...]:
        return ()


class PolicyPart(Struct, frozen=True, gc=False):
    """The part of a policy. It is computed at each read, because policies may select ten thousand peers."""

    node: LocalNode
    owner: PolicySubject | PolicyPorts | PeerEntry

    @property
    def flows(self) -> tuple[Flow, ...]:
        if isinstance(self.owner, PeerEntry):
            return policies.peer_flows(self.node, self.owner)
        if isinstance(self.owner, PolicyPorts):
            return policies.port_flows(self.node, self.owner.direction, self.owner.ports)
        return (*policies.subject_flows(self.owner), *policies.rule_flows(self.node, self.owner))

    @property
    def groups(self) -> tuple[Group, ...]:
        return ()

    @property
    def meters(self) -> tuple[Meter, ...]:
        return ()


AnyPart: TypeAlias = Part | ServicePart | PolicyPart
NOTHING = Part()
NO_POLICIES = PodPolicies()
Program: TypeAlias = Mapping[Owner, AnyPart]


def program(state: NodeState) -> Program:
    return dict(parts(state))


def parts(state: NodeState) -> Iterator[tuple[Owner, AnyPart]]:
    """All owners with what they need. Peers of policies may be ten thousand: they are not looked up by name again."""
    for owner in _owners_but_policy_peers(state):
        yield owner, part(state, owner)
    for network, entry in state.policies.peers.items():
        yield Owner(OwnerKind.POLICY_PEER, network), PolicyPart(state.node, entry)


def owners(state: NodeState) -> Iterator[Owner]:
    yield from _owners_but_policy_peers(state)
    for network in state.policies.peers:
        yield Owner(OwnerKind.POLICY_PEER, network)


def _owners_but_policy_peers(state: NodeState) -> Iterator[Owner]:
    yield Owner(OwnerKind.NODE, state.node.name)
    for name in state.peers:
        yield Owner(OwnerKind.PEER, name)
    for container_id in state.pods:
        yield Owner(OwnerKind.POD, container_id)
    for key in state.services:
        yield Owner(OwnerKind.SERVICE, key)
    for key in state.policies.subjects:
        yield Owner(OwnerKind.POLICY_SUBJECT, key)
    for key in state.policies.ports:
        yield Owner(OwnerKind.POLICY_PORTS, key)


def part(state: NodeState, owner: Owner) -> AnyPart:
    """What this owner needs now; NOTHING if it is gone."""
    node = state.node
    match owner.kind:
        case OwnerKind.NODE if owner.name == node.name:
            return Part(
                flows=(
                    *LAYOUT.miss_flows(),
                    *ports.flows(node),
                    *responders.flows(node),
                    *pods.flows(node),
                    *connections.flows(node),
                    *snat.flows(node),
                    *icmp_errors.flows(node),
                    *sctp.flows(node),
                    *exhaustion.flows(node),
                    *routing.flows(node),
                    *tunnels.flows(node),
                    *frontends.flows(node),
                    *host_endpoints.flows(node),
                    *service_snat.flows(node),
                    *rejects.flows(node),
                    *policies.flows(node),
                ),
                meters=(*rejects.meters(node), *policies.meters(node)),
            )
        case OwnerKind.PEER if owner.name in state.peers:
            peer = state.peers[owner.name]
            builders = (routing.peer_flows, tunnels.peer_flows, connections.peer_flows)
            return Part(flows=tuple(flow for build in builders for flow in build(node, peer)))
        case OwnerKind.POD if owner.name in state.pods:
            pod = state.pods[owner.name]
            policed = policies.pod_flows(node, pod, state.policies.pods.get(pod.key, NO_POLICIES))
            # An empty switch gets them in this order: no packet may pass before the policies are there.
            return Part(flows=(*policed, *pods.pod_flows(node, pod)))
        case OwnerKind.SERVICE if (service := state.services.get(owner.name)) is not None:
            return ServicePart(node, service)
        case OwnerKind.POLICY_SUBJECT if (subject := state.policies.subjects.get(owner.name)) is not None:
            return PolicyPart(node, subject)
        case OwnerKind.POLICY_PORTS if (port_set := state.policies.ports.get(owner.name)) is not None:
            return PolicyPart(node, port_set)
        case OwnerKind.POLICY_PEER if (entry := state.policies.peers.get(owner.name)) is not None:
            return PolicyPart(node, entry)
    return NOTHING
