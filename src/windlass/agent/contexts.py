"""What Services and peers depend on at this Node, and what they need from the host and the switch. Pure."""

from __future__ import annotations

from typing import NamedTuple

from windlass.cluster.endpoints import ServingNode
from windlass.cluster.nodes import Identity
from windlass.host.plans import HostNames, HostPlan, Item, plan_node, plan_peer, pod_mtu
from windlass.host.protocol import Uplink
from windlass.host.services import plan_service, plan_services
from windlass.model.families import Family, IPNetwork
from windlass.model.nodes import LocalNode, NodeState, TrafficMode
from windlass.nodes.config import Config
from windlass.program import Owner, OwnerKind
from windlass.switch.bridge_specs import BridgeSpec, TunnelSpec


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
        """What the host should hold independently of Services and peers."""
        own = plan_node(
            self.node, self.names, uplink.mtu, userspace=config.is_userspace, configured_mtu=config.mtu or None
        )
        gateway_mtu = spec.gateway_mtu or uplink.mtu
        networks = self.node.node_port_networks
        return own | plan_services(self.node, self.names, self.service_cidrs, networks, mtu=gateway_mtu)


def bridge_spec(config: Config, node: LocalNode, adapter: Uplink, boot: str) -> BridgeSpec:
    """The bridge of this Node as the switch's database should have it."""
    underlay = Family.IPV4 if Family.IPV4 in node.addresses else Family.IPV6
    # In user space the agent gives the switch its tunnel routes, and each of them names its source address.
    local_ip = None if node.userspace else node.addresses[underlay].ip
    tunnel = TunnelSpec(config.tunnel_type, config.tunnel, local_ip)
    return BridgeSpec(
        name=config.bridge,
        datapath_type=config.datapath_type.value,
        hwaddr=node.uplink_mac,
        gateway=config.gateway,
        gateway_mac=node.gateway_mac,
        uplink=adapter.name,
        uplink_index=adapter.index,
        boot=boot,
        tunnel=None if config.traffic_mode is TrafficMode.NO_ENCAP else tunnel,
        mtu=adapter.mtu,
        gateway_mtu=pod_mtu(node, adapter.mtu, config.mtu or None),
        numbers=node.ports,
    )
