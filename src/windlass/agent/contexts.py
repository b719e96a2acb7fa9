"""What this Node is, as far as its Services and peers depend on it; and what one of them asks of the host. Pure."""

from __future__ import annotations

from typing import NamedTuple

from windlass.cluster.endpoints import ServingNode
from windlass.cluster.nodes import Identity
from windlass.host.plans import HostNames, HostPlan, Item, plan_node, plan_peer
from windlass.host.protocol import Uplink
from windlass.host.services import plan_service, plan_services
from windlass.model.families import IPNetwork
from windlass.model.nodes import LocalNode, NodeState
from windlass.nodes.config import Config
from windlass.program import Owner, OwnerKind
from windlass.switch.bridge_specs import BridgeSpec


class NodeContext(NamedTuple):
    """A change here concerns all Services and peers."""

    own: Identity
    serving: ServingNode
    node: LocalNode
    names: HostNames
    service_cidrs: tuple[IPNetwork, ...]

    def items_of(self, owner: Owner, state: NodeState) -> frozenset[Item]:
        """The items that this Service or peer needs on the host."""
        if owner.kind is OwnerKind.SERVICE and (service := state.services.get(owner.name)):
            return plan_service(self.node, self.names, service, self.service_cidrs)
        if owner.kind is OwnerKind.PEER and (peer := state.peers.get(owner.name)):
            return plan_peer(self.node, peer, self.names).items
        return frozenset()

    def shared_plan(self, config: Config, uplink: Uplink, spec: BridgeSpec) -> HostPlan:
        """What the host should hold whatever Services and peers there are."""
        own = plan_node(
            self.node, self.names, uplink.mtu, userspace=config.is_userspace, configured_mtu=config.mtu or None
        )
        gateway_mtu = spec.gateway_mtu or uplink.mtu
        networks = self.node.node_port_networks
        return own | plan_services(self.node, self.names, self.service_cidrs, networks, mtu=gateway_mtu)
