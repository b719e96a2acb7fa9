"""The state of a cluster as policies see it: Pods, Nodes, namespaces and policies, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windlass.cluster.policy_objects import (
    ClusterNetworkPolicy,
    ClusterNetworkPolicySpec,
    Labels,
    NetworkPolicy,
    NetworkPolicySpec,
)
from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class PolicyPod:
    """A Pod with an address of its own; a Pod in hostNetwork mode is part of its Node."""

    namespace: str
    name: str
    node: str
    addresses: tuple[IPAddress, ...]
    labels: Labels = field(default_factory=dict)
    named_ports: tuple[tuple[str, str, int], ...] = ()  # name, protocol, port
    has_known_addresses: bool = True  # False: placeholders of both IP versions
    is_workload: bool = False  # it stands for all replicas of a workload


@dataclass(frozen=True, slots=True)
class PolicyNode:
    name: str
    addresses: tuple[IPAddress, ...]
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyWorld:
    """Everything that policies can refer to."""

    pods: Sequence[PolicyPod] = ()
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    nodes: Sequence[PolicyNode] = ()
    network_policies: Sequence[NetworkPolicy] = ()
    cluster_network_policies: Sequence[ClusterNetworkPolicy] = ()

    @property
    def policy_specs(self) -> dict[str, NetworkPolicySpec | ClusterNetworkPolicySpec]:
        """By kind and name, as `ReadPolicy` names them."""
        return {
            **{f"NetworkPolicy {one.key}": one.spec for one in self.network_policies},
            **{f"ClusterNetworkPolicy {one.key}": one.spec for one in self.cluster_network_policies},
        }
