"""The NodeState of one Node from its configuration, the cluster's objects and what the Node holds itself. Pure.

`node_state` computes it at once. The agent keeps it up to date with `local_node`, `Peers`, `NodeServices` and
`FollowedPolicies`, which `node_state` uses, too: see docs/decisions/0023-state-in-parts.md.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from windlass.cluster.clusters import Cluster
from windlass.host.protocol import Uplink
from windlass.model.families import IPAddress
from windlass.model.nodes import AttachedPod, NodeState
from windlass.nodes.config import Config
from windlass.nodes.group_numbers import GroupNumbers
from windlass.nodes.identities import local_node, other_addresses, own_identity, service_cidrs, serving_node
from windlass.nodes.peers import Peers
from windlass.nodes.policies import FollowedPolicies
from windlass.nodes.services import NodeServices

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What only the Node itself knows."""

    adapter: Uplink  # the uplink, with its addresses wherever they are now
    held_addresses: Collection[IPAddress] = ()  # of all interfaces, as `Host.held_addresses` lists them
    pods: Mapping[str, AttachedPod] = field(default_factory=dict)  # by container id


def node_state(config: Config, cluster: Cluster, facts: NodeFacts) -> NodeState:
    """The state of the Node `config.node_name`. Raises NotUsable if its Node object or its NIC cannot be used.

    Group numbers are those of a Node that has saved none before.
    """
    own = own_identity(config, cluster)
    cidrs, _ = service_cidrs(config, cluster)
    node = local_node(config, own, facts.adapter, other_addresses(own, facts.held_addresses, cidrs), cidrs)
    peers = Peers()
    peers.follow(cluster.nodes, own)
    services = NodeServices(GroupNumbers())
    run_to_end(services.following(cluster, serving_node(config, cluster, own)))
    policies = FollowedPolicies(own.name, counts_rules=config.count_policy_rules)
    run_to_end(policies.following(cluster))
    policies.settle(node, facts.pods)
    return NodeState(node, peers.usable, facts.pods, services.services, policies.policies)


def run_to_end(slices: Generator[None, None, R]) -> R:
    """The result of work that is done in slices, without a pause between them."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: R = end.value
            return result
