"""The bridge of this Node as the switch's database should have it. Pure."""

from __future__ import annotations

from windlass.host.plans import pod_mtu
from windlass.host.protocol import Uplink
from windlass.model.families import Family
from windlass.model.nodes import LocalNode, TrafficMode
from windlass.nodes.config import Config
from windlass.switch.bridge_specs import BridgeSpec, TunnelSpec


def bridge_spec(config: Config, node: LocalNode, adapter: Uplink, boot: str) -> BridgeSpec:
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
