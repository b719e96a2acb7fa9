"""What the pipeline reserves: reasons and meters of packets for the agent, virtual addresses, source ports of SNAT."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.openflow.fields import mac
from windlass.pipeline.declarations import DECLARED

# --- Packets that the switch hands to the agent ----------------------------------------------------------------------

REJECT = DECLARED.reason(
    b"reject", "reject", "to a Service without endpoints: answer with a TCP reset or an ICMP error"
)

DENIAL = DECLARED.reason(b"denied", "denied", "a policy denies the packet: log which one")

REJECTS_PER_SECOND, REJECT_BURST = 100, 200  # for each meter
POD_METERS = DECLARED.meter_range(
    range(1, 17), "pods", "rejects of Pods; the lowest bits of a Pod's address choose the meter"
)
(HOST_METER,) = DECLARED.meter_range(range(17, 18), "host", "rejects of the host")
(OUTSIDE_METER,) = DECLARED.meter_range(range(18, 19), "outside", "rejects of all other clients")

DENIALS_PER_SECOND, DENIAL_BURST = 10, 50
(DENIAL_METER,) = DECLARED.meter_range(range(19, 20), "denials", "denied packets that are logged")

# --- Addresses that no machine has -----------------------------------------------------------------------------------

VIRTUAL_MAC = DECLARED.mac(
    mac("aa:bb:cc:dd:ee:ff"), "virtual MAC", "the one neighbour that Pods and the host's gateway interface see"
)
NODE_PORT_ADDRESS: Mapping[Family, IPAddress] = DECLARED.address(
    "NodePort address",
    "the host translates its own addresses to this one when it connects to a NodePort",
    IPv4Address("169.254.169.110"),
    IPv6Address("fd00:169:254:169::110"),
)
VIRTUAL_CLIENT: Mapping[Family, IPAddress] = DECLARED.address(
    "virtual client",
    "the source of connections to endpoints on this host, so that replies come back to the switch",
    IPv4Address("169.254.169.111"),
    IPv6Address("fd00:169:254:169::111"),
)
NODE_STAND_IN: Mapping[Family, IPAddress] = DECLARED.address(
    "Node stand-in",
    "the host writes it in place of the Node IP on packets for Pods that left as the Node (its own ICMP errors, and "
    "replies received on NICs outside of the switch); the switch restores the Node IP",
    IPv4Address("169.254.169.112"),
    IPv6Address("fd00:169:254:169::112"),
)
# Only the host itself may send to or from these.
VIRTUAL_ADDRESSES: dict[Family, tuple[IPNetwork, ...]] = {
    Family.IPV4: (IPv4Network("169.254.169.110/31"), IPv4Network("169.254.169.112/32")),
    Family.IPV6: (IPv6Network("fd00:169:254:169::110/127"), IPv6Network("fd00:169:254:169::112/128")),
}
STAND_INS: Mapping[Family, IPNetwork] = DECLARED.address(
    "external stand-ins",
    "for an external address of a Service that the host itself has: the host connects to the same address with these "
    "first bits instead, because Linux never routes a local address to the switch; both ranges are unassigned",
    IPv4Network("240.0.0.0/4"),
    IPv6Network("4000::/3"),
)


def stand_in(address: IPAddress) -> IPAddress:
    """The address by which the host connects to a Service at its own address `address`."""
    reserved = STAND_INS[family_of(address)]
    return type(address)(int(reserved.network_address) | int(address) & int(reserved.hostmask))


# --- Source ports of translated connections --------------------------------------------------------------------------
# A port stays in use until its connection expires, possibly minutes after the connection ended, so there must be many.
# The host's own connections never use these ports: they are outside of the ephemeral ports of Windows and Linux, or
# reserved on Linux. At the Node IP they are also outside of the NodePorts. Each range is one mask: few flows, few
# megaflows. Pods and clients of Services have different ranges, so that a flow can tell their replies apart without a
# lookup. `snat_ports` decides which ports of the Node IP are used.

RESERVED_SNAT_PORTS = DECLARED.port_range(
    "Node IP", 0x3000, 0x3FFF, "pods-reserved", "the same as pods, where the host reserves ports for SNAT"
)
SNAT_PORTS = DECLARED.port_range("Node IP", 0x4000, 0x5FFF, "pods", "Pods that connect to the outside")
SERVICE_SNAT_PORTS = DECLARED.port_range(
    "Node IP", 0x6000, 0x6FFF, "services", "clients of Services whose endpoint is outside"
)
RESERVED_SERVICE_SNAT_PORTS = DECLARED.port_range(
    "Node IP", 0x8000, 0xBFFF, "services-reserved", "instead of services, where the host reserves ports for SNAT"
)
GATEWAY_SNAT_PORTS = DECLARED.port_range(
    "gateway", 0x0400, 0x7FFF, "gateway", "clients of Services that the endpoint sees as the gateway"
)
VIRTUAL_SNAT_PORTS = DECLARED.port_range(
    "virtual client", 0x0400, 0xFFFF, "host-endpoints", "clients of Services whose endpoint is on this host"
)
