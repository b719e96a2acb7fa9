"""What the Node's bridge and its own ports should be. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from windlass.model.families import IPAddress
from windlass.model.nodes import Ports, TunnelType

# Keys in the external_ids of an Interface.
ROLE: Final = "windlass-role"  # marks the ports that Windlass made
BOOT: Final = "windlass-boot"  # of an uplink: the boot id of the machine when the NIC was made a port
INDEX: Final = "windlass-ifindex"  # of an uplink: the interface index of the NIC when it was made a port


class Role(Enum):
    LOCAL = "local"
    GATEWAY = "gateway"
    TUNNEL = "tunnel"
    UPLINK = "uplink"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class TunnelSpec:
    type: TunnelType
    name: str = "windlass-tun0"
    local_ip: IPAddress | None = None  # required on Windows

    @property
    def options(self) -> dict[str, str]:
        options = {"remote_ip": "flow", "key": "flow"}  # flows set both: one port serves every peer
        if self.local_ip is not None:
            options["local_ip"] = str(self.local_ip)
        return options


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    name: str
    datapath_type: str  # system | netdev
    hwaddr: str  # the uplink's: the bridge interface takes its place in the network
    gateway: str
    gateway_mac: str
    uplink: str
    tunnel: TunnelSpec | None  # None in noEncap
    uplink_index: int | None = None  # the uplink's interface index: a new NIC of the same name has another one
    boot: str = ""  # the machine's boot id: after a reboot `start-ovs-vswitchd.sh` releases the uplink
    # Without a request, ovs-vswitchd gives internal ports the smallest MTU of all ports, again with each new Pod.
    mtu: int | None = None
    gateway_mtu: int | None = None
    numbers: Ports = field(default_factory=Ports)
    # Windlass speaks OpenFlow 1.5; 1.3 is for command-line tools, whose default it is.
    protocols: frozenset[str] = frozenset({"OpenFlow13", "OpenFlow15"})

    @property
    def is_userspace(self) -> bool:
        return self.datapath_type == "netdev"
