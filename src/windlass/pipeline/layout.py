"""The pipeline's stages and tables, and every number that flows use: registers, zones, priorities, ports, addresses.

Numbers are those of the design notes where the notes name them, so that a reader of the notes recognises a dump. The
pipeline page of the docs, the words of a rendered flow and the checks all come from here.

It is longer than other files because it is read as one: what a packet passes, from the first table to the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.openflow.actions import Output, OutputTo
from windlass.openflow.fields import (
    ARP_OP,
    ARP_SENDER,
    ARP_TARGET,
    CT_LABEL,
    CT_MARK,
    CT_STATE,
    CT_ZONE,
    DESTINATION_PORT,
    ETH_DST,
    ETH_SRC,
    ICMP_KIND,
    IN_PORT,
    IP_DESTINATION,
    IP_FRAG,
    IP_SOURCE,
    LOCAL_PORT,
    ND_OPTIONS_TYPE,
    ND_RESERVED,
    ND_SLL,
    ND_TARGET,
    ND_TLL,
    PROTOCOL,
    SOURCE_PORT,
    TUNNEL_DESTINATION,
    TUNNEL_SOURCE,
    VLAN_VID,
    Term,
    mac,
    reg,
)
from windlass.pipeline.declarations import ONWARD, Layout, Miss
from windlass.pipeline.registers import adjacent, halves

LAYOUT = Layout()

# --- Registers: from the table that sets them to the end of the packet's path ----------------------------------------

SOURCE = LAYOUT.field(reg(0)[0:16], "source", "the kind of port on which the packet was received")
FROM_TUNNEL = SOURCE.mark(0, "Tunnel")
FROM_GATEWAY = SOURCE.mark(1, "Gateway")
FROM_POD = SOURCE.mark(2, "Pod")
FROM_UPLINK = SOURCE.mark(4, "Uplink")
FROM_BRIDGE = SOURCE.mark(5, "Bridge")
FROM_HOST_ENDPOINT = SOURCE.mark(6, "HostEndpoint")  # from the bridge as well: perhaps a reply of a Service

SNAT = LAYOUT.flag(reg(0)[17], "snat", "leaves with the Node IP as source")
TO_NODE = LAYOUT.flag(reg(0)[18], "to-node", "addressed to the Node itself: perhaps to a NodePort")
MASQUERADE = LAYOUT.flag(reg(0)[19], "masquerade", "to a Service whose endpoint must see the gateway as the client")
SNAT_VIRTUAL = LAYOUT.flag(
    reg(0)[20], "snat-virtual", "leaves with the virtual client as source, so that the host's replies come back"
)
HAIRPIN = LAYOUT.flag(reg(0)[21], "hairpin", "leaves by the port on which it was received")
OUT_PORT = LAYOUT.field(reg(1)[0:32], "out", "the port by which the packet leaves")
ARP_QUERY = LAYOUT.field(reg(2)[0:32], "arp-query", "the address that an ARP request asks for")
ND_FLAGS = LAYOUT.field(reg(3)[0:32], "nd-flags", "the flags to write into a neighbour advertisement")
ND_OPTION = LAYOUT.field(reg(4)[0:8], "nd-option", "the option type to write into a neighbour advertisement")
STICKY_GROUP = LAYOUT.field(reg(5)[0:32], "sticky-group", "the group of a Service port with session affinity")
ENDPOINT = LAYOUT.field(reg(6)[0:32], "endpoint", "the endpoint of that group which serves this client; 0: none yet")
CLIENT_ZONE = LAYOUT.field(reg(7)[0:16], "client-zone", "the zone of an SCTP connection: its client's port")
CLIENT_SNAT_ZONE = LAYOUT.field(
    reg(7)[16:32], "client-snat-zone", "its zone for source translation: the client's port, rotated left by one bit"
)
SERVICE_PORT = LAYOUT.field(reg(8)[0:16], "service-port", "the destination port of an SCTP packet before translation")
SUBJECT = LAYOUT.wide_field(reg(10), reg(11), "subject", "the policies of a local Pod, as a digest")
PEER_CLASS = LAYOUT.wide_field(reg(12), reg(13), "peer-class", "what rules mean of the peer, as a digest; 0: nothing")
PORT_SET = LAYOUT.wide_field(reg(14), reg(15), "port-set", "the ports that policies allow, as a digest")

# --- Connection tracking ---------------------------------------------------------------------------------------------

POD_ZONE = LAYOUT.zone(65520, "pods", "all connections of Pods and Services, of both families")
SNAT_ZONE = LAYOUT.zone(
    65521, "sources", "the source translation of Service connections: a zone holds one translation of a connection"
)

CT_TO_NODE = LAYOUT.flag(CT_MARK[3], "ct-to-node", "a Service connection that was addressed to the Node itself")
CT_MASQUERADE = LAYOUT.flag(CT_MARK[4], "ct-masquerade", "a Service connection whose endpoint sees the gateway")
CT_SERVICE = LAYOUT.flag(CT_MARK[5], "ct-service", "a connection to a Service (0x20, as in the design notes)")
CT_SNAT = LAYOUT.flag(CT_MARK[6], "ct-snat", "a Pod connection that leaves as the Node (0x40, as in the design notes)")
CT_DENIED = LAYOUT.flag(CT_MARK[7], "ct-denied", "a connection that existed when a policy denied it")
CT_ENDPOINT_PORT = LAYOUT.field(CT_LABEL[0:16], "ct-endpoint-port", "the endpoint's port of an SCTP connection")
CT_SERVICE_PORT = LAYOUT.field(CT_LABEL[16:32], "ct-service-port", "the Service port of an SCTP connection")

# What a Service connection keeps of its first packet.
SERVICE_FLAGS, CT_SERVICE_FLAGS = adjacent(TO_NODE, MASQUERADE), adjacent(CT_TO_NODE, CT_MASQUERADE)

NEW: Term = CT_STATE(0x21, 0x31)  # +new-inv+trk
NOT_TRANSLATED: Term = CT_STATE(0x21, 0x71)  # +new-inv+trk-snat: a commit with SNAT that found no free port
ESTABLISHED_ORIGINAL: Term = CT_STATE(0x20, 0x29)  # -new-rpl+trk: in the direction of the connection's first packet
REPLY: Term = CT_STATE(0x28, 0x28)  # +rpl+trk
ORIGINAL: Term = CT_STATE(0x20, 0x28)  # -rpl+trk
RELATED: Term = CT_STATE(0x24, 0x35)  # -new+rel-inv+trk: an ICMP error about a connection
RELATED_ORIGINAL: Term = CT_STATE(0x24, 0x3D)  # the same, -rpl: about a reply, in the direction of the first packet
RELATED_REPLY: Term = CT_STATE(0x2C, 0x3D)  # the same, +rpl: about a packet of the client
INVALID: Term = CT_STATE(0x30, 0x30)  # +inv+trk
OPENING: Term = CT_STATE(0, 0x0C)  # -rel-rpl: in the direction of the connection's first packet, or not tracked
VALID: Term = CT_STATE(0x20, 0x30)  # -inv+trk
UNTRACKED: Term = CT_STATE(0, 0x20)  # -trk

# --- Stages, in the order in which a packet passes them --------------------------------------------------------------

CLASSIFY_STAGE = LAYOUT.stage("classify", "Where the packet comes from, and whether it is for the host or for Pods")
SPOOF_GUARD_STAGE = LAYOUT.stage("spoof guard", "Pods send only from their own addresses")
NEIGHBOUR_STAGE = LAYOUT.stage("neighbours", "The switch itself answers ARP and Neighbour Discovery")
CONNTRACK_STAGE = LAYOUT.stage("conntrack", "The connection of the packet, and its translation")
SERVICE_STAGE = LAYOUT.stage("service", "The endpoint of a new connection to a Service")
SCTP_STAGE = LAYOUT.stage("SCTP ports", "Ports of SCTP connections where connection tracking does not know them")
ROUTE_STAGE = LAYOUT.stage("route", "The port by which the packet leaves")
EGRESS_POLICY_STAGE = LAYOUT.stage("egress policy", "Which connections local Pods may open")
INGRESS_POLICY_STAGE = LAYOUT.stage("ingress policy", "Which connections local Pods accept")
DENIAL_STAGE = LAYOUT.stage("policy denials", "Connections that policies deny, and those that they allow again")
COMMIT_STAGE = LAYOUT.stage("commit", "New connections are stored, with the source translation that they need")
OUTPUT_STAGE = LAYOUT.stage("output", "The packet leaves")

# --- Tables ----------------------------------------------------------------------------------------------------------

CLASSIFIER = CLASSIFY_STAGE.table(
    0,
    "Classifier",
    "On which kind of port was the packet received?",
    matches=(IN_PORT, VLAN_VID, ETH_DST, PROTOCOL, IP_SOURCE, IP_DESTINATION, SOURCE_PORT, ICMP_KIND, TUNNEL_SOURCE),
    sets=(SOURCE, ETH_DST, IP_DESTINATION),
    leads_to=("Uplink", SPOOF_GUARD_STAGE, NEIGHBOUR_STAGE, CONNTRACK_STAGE),
    miss=Miss("from an unknown port or peer, or for the MAC address of another machine: drop"),
)
UPLINK = CLASSIFY_STAGE.table(
    5,
    "Uplink",
    "From the wire: is it for the host, for a Pod, or for a Service?",
    aside=True,
    matches=(VLAN_VID, PROTOCOL, IP_SOURCE, IP_DESTINATION, DESTINATION_PORT, ICMP_KIND, IP_FRAG),
    leads_to=("NodePortFilter", CONNTRACK_STAGE),
    miss=Miss("from the wire, for neither Pods nor Services: deliver to the host", (Output(LOCAL_PORT),)),
)
NODE_PORT_FILTER = CLASSIFY_STAGE.table(
    6,
    "NodePortFilter",
    "To the Node's own address: is the port a NodePort?",
    aside=True,
    matches=(PROTOCOL, DESTINATION_PORT),
    leads_to=(CONNTRACK_STAGE,),
    miss=Miss("to the Node, but not to a NodePort: deliver to the host", (Output(LOCAL_PORT),)),
)
SPOOF_GUARD = SPOOF_GUARD_STAGE.table(
    10,
    "SpoofGuard",
    "Does the Pod send from its own MAC and IP address?",
    matches=(
        *(IN_PORT, VLAN_VID, ETH_SRC, PROTOCOL, IP_SOURCE, IP_DESTINATION, ICMP_KIND),
        *(ARP_OP, ARP_SENDER, ARP_TARGET, ND_TARGET, ND_SLL),
    ),
    leads_to=(NEIGHBOUR_STAGE, ONWARD),
    miss=Miss("from a Pod, but not from the Pod's own MAC and IP address: drop"),
)
ARP_RESPONDER = NEIGHBOUR_STAGE.table(
    20,
    "ARPResponder",
    "Which MAC address has this IP address? The answer is always the virtual MAC address.",
    aside=True,
    matches=(PROTOCOL, ARP_OP, ARP_SENDER, ARP_TARGET, ICMP_KIND, IP_SOURCE, ND_TARGET, SOURCE),
    sets=(
        *(ETH_SRC, ETH_DST, ARP_OP, ARP_SENDER, ARP_TARGET, ARP_QUERY, ICMP_KIND, IP_SOURCE, IP_DESTINATION),
        *(ND_FLAGS, ND_RESERVED, ND_OPTION, ND_OPTIONS_TYPE),
    ),
    leads_to=("NDAdvertiser",),
    miss=Miss("neither an ARP request nor a neighbour solicitation: drop"),
)
ND_ADVERTISER = NEIGHBOUR_STAGE.table(
    21,
    "NDAdvertiser",
    "The second step of a neighbour advertisement: the MAC address can be written only now.",
    aside=True,
    matches=(PROTOCOL, ICMP_KIND),
    sets=(ND_TLL,),
    miss=Miss("not a neighbour advertisement: drop"),
)
UN_SNAT = CONNTRACK_STAGE.table(
    25,
    "UnSNAT",
    "Is it a reply to a Service's client that got a translated source? Then restore the client's address first.",
    matches=(PROTOCOL, IP_DESTINATION, DESTINATION_PORT, ICMP_KIND, IP_FRAG, SOURCE),
    sets=(CLIENT_SNAT_ZONE,),
    zones=(SNAT_ZONE, CLIENT_SNAT_ZONE),
    leads_to=("SCTPDirection", ONWARD, ROUTE_STAGE),
    miss=Miss("not a reply to a client with a translated source: look up its connection", leads_to=ONWARD),
)
SCTP_DIRECTION = CONNTRACK_STAGE.table(
    26,
    "SCTPDirection",
    "SCTP where connection tracking does not know ports: which of its two ports is the client's?",
    aside=True,
    matches=(PROTOCOL, CT_STATE),
    sets=(CLIENT_ZONE,),
    zones=(CLIENT_ZONE, CLIENT_SNAT_ZONE),
    leads_to=(ONWARD,),
    miss=Miss("not SCTP: drop"),
)
CONNTRACK = CONNTRACK_STAGE.table(
    30,
    "Conntrack",
    "To which connection does the packet belong? It is translated as that connection was.",
    matches=(PROTOCOL, IP_DESTINATION, ICMP_KIND, CT_STATE, SOURCE),
    sets=(CLIENT_ZONE, CLIENT_SNAT_ZONE, SERVICE_PORT),
    zones=(POD_ZONE, CLIENT_ZONE),
    leads_to=(ONWARD, ROUTE_STAGE),
    miss=Miss("not IP: drop"),
)
CONNTRACK_STATE = CONNTRACK_STAGE.table(
    31,
    "ConntrackState",
    "Is the connection new, established, or invalid?",
    matches=(IN_PORT, PROTOCOL, IP_SOURCE, IP_DESTINATION, ICMP_KIND, CT_STATE, CT_SERVICE, SOURCE),
    sets=(ETH_DST, IP_SOURCE, TO_NODE, MASQUERADE),
    zones=(POD_ZONE,),
    leads_to=(SERVICE_STAGE, SCTP_STAGE, ROUTE_STAGE),
    miss=Miss("of an established connection, or not tracked: route it", leads_to=ROUTE_STAGE),
)
SERVICE_LB = SERVICE_STAGE.table(
    41,
    "ServiceLB",
    "Is the new connection to a Service, and which endpoint serves it?",
    matches=(PROTOCOL, IP_SOURCE, IP_DESTINATION, SOURCE_PORT, DESTINATION_PORT, IP_FRAG, SOURCE, TO_NODE),
    sets=(MASQUERADE, STICKY_GROUP, CT_SERVICE, CT_TO_NODE, CT_MASQUERADE, CT_ENDPOINT_PORT, CT_SERVICE_PORT),
    zones=(POD_ZONE, CLIENT_ZONE),
    leads_to=("SessionAffinity", "EndpointDNAT", "ServiceReject", SCTP_STAGE, ONWARD),
    miss=Miss("a new connection to no Service: route it", leads_to=ONWARD),
)
SESSION_AFFINITY = SERVICE_STAGE.table(
    42,
    "SessionAffinity",
    "Which endpoint served this client last? The switch itself writes these flows.",
    aside=True,
    matches=(PROTOCOL, IP_SOURCE, STICKY_GROUP),
    sets=(ENDPOINT,),
    miss=None,
)
ENDPOINT_DNAT = SERVICE_STAGE.table(
    43,
    "EndpointDNAT",
    "Session affinity: the endpoint that served this client before, or a new one that it will keep.",
    aside=True,
    matches=(PROTOCOL, STICKY_GROUP, ENDPOINT),
    sets=(ENDPOINT, CT_SERVICE, CT_TO_NODE, CT_MASQUERADE, CT_ENDPOINT_PORT, CT_SERVICE_PORT),
    zones=(POD_ZONE, CLIENT_ZONE),
    leads_to=("EndpointDNAT", SCTP_STAGE, ONWARD),  # to itself once, by the group that chooses an endpoint
    miss=Miss("to a Service with session affinity that is gone meanwhile: drop"),
)
SERVICE_REJECT = SERVICE_STAGE.table(
    45,
    "ServiceReject",
    "To a Service without endpoints: which meter limits how many such packets the agent gets to reject?",
    aside=True,
    matches=(PROTOCOL, IP_SOURCE, SOURCE),
    miss=Miss("not IP: drop"),
)
SCTP_PORTS = SCTP_STAGE.table(
    60,
    "SCTPPorts",
    "SCTP to a Service where connection tracking does not know ports: which port did the connection store?",
    aside=True,
    matches=(PROTOCOL, CT_STATE, CT_SERVICE),
    sets=(SOURCE_PORT, DESTINATION_PORT),
    leads_to=(ROUTE_STAGE,),
    miss=Miss("not SCTP to a Service: drop"),
)
L3_FORWARDING = ROUTE_STAGE.table(
    70,
    "L3Forwarding",
    "Where is the destination: a local Pod, the host, a peer Node, or outside?",
    matches=(
        *(IN_PORT, PROTOCOL, IP_SOURCE, IP_DESTINATION, DESTINATION_PORT, SOURCE),
        *(CT_STATE, CT_SERVICE, CT_TO_NODE, CT_MASQUERADE),
    ),
    sets=(ETH_SRC, ETH_DST, TUNNEL_DESTINATION, OUT_PORT, SNAT, SNAT_VIRTUAL, HAIRPIN),
    leads_to=(ONWARD,),
    miss=Miss("to the outside, but neither from a Pod nor of a Service connection: drop"),
)
EGRESS_SUBJECT = EGRESS_POLICY_STAGE.table(
    75,
    "EgressSubject",
    "From a local Pod: which policies hold for what it sends?",
    matches=(IN_PORT, PROTOCOL, CT_STATE, HAIRPIN),
    sets=(*halves(SUBJECT), *halves(PORT_SET)),
    leads_to=("EgressPeer", "EgressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("not from a Pod with policies, or a reply: no egress policy applies", leads_to=ONWARD),
)
EGRESS_PEER = EGRESS_POLICY_STAGE.table(
    76,
    "EgressPeer",
    "What do the rules mean of the destination? The longest prefix decides.",
    aside=True,
    matches=(PROTOCOL, IP_DESTINATION),
    sets=halves(PEER_CLASS),
    leads_to=("EgressVerdict",),
    miss=Miss("to a destination that no rule means: look up the verdict for everyone", (), "EgressVerdict"),
)
EGRESS_VERDICT = EGRESS_POLICY_STAGE.table(
    77,
    "EgressVerdict",
    "Which traffic do the Pod's policies allow to this class of destinations?",
    aside=True,
    matches=(*halves(SUBJECT), *halves(PEER_CLASS)),
    sets=halves(PORT_SET),
    leads_to=("EgressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("the policies of the sending Pod are not known yet: deny", leads_to=DENIAL_STAGE),
)
EGRESS_PORTS = EGRESS_POLICY_STAGE.table(
    78,
    "EgressPorts",
    "Is this protocol and port among those that are allowed?",
    aside=True,
    matches=(PROTOCOL, DESTINATION_PORT, IP_FRAG, CT_STATE, *halves(PORT_SET)),
    leads_to=(ONWARD, DENIAL_STAGE),
    miss=Miss("to a port that the policies of the sending Pod do not allow: deny", leads_to=DENIAL_STAGE),
)
INGRESS_SUBJECT = INGRESS_POLICY_STAGE.table(
    90,
    "IngressSubject",
    "To a local Pod: which policies hold for what it receives?",
    matches=(IN_PORT, PROTOCOL, IP_SOURCE, CT_STATE, SOURCE, OUT_PORT, HAIRPIN),
    sets=(*halves(SUBJECT), *halves(PEER_CLASS), *halves(PORT_SET)),
    leads_to=("IngressPeer", "IngressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("not to a Pod with policies, or a reply: no ingress policy applies", leads_to=ONWARD),
)
INGRESS_PEER = INGRESS_POLICY_STAGE.table(
    91,
    "IngressPeer",
    "What do the rules mean of the source? The longest prefix decides.",
    aside=True,
    matches=(PROTOCOL, IP_SOURCE),
    sets=halves(PEER_CLASS),
    leads_to=("IngressVerdict",),
    miss=Miss("from a source that no rule means: look up the verdict for everyone", (), "IngressVerdict"),
)
INGRESS_VERDICT = INGRESS_POLICY_STAGE.table(
    92,
    "IngressVerdict",
    "Which traffic do the Pod's policies allow from this class of sources?",
    aside=True,
    matches=(*halves(SUBJECT), *halves(PEER_CLASS)),
    sets=halves(PORT_SET),
    leads_to=("IngressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("the policies of the receiving Pod are not known yet: deny", leads_to=DENIAL_STAGE),
)
INGRESS_PORTS = INGRESS_POLICY_STAGE.table(
    93,
    "IngressPorts",
    "Is this protocol and port among those that are allowed?",
    aside=True,
    matches=(PROTOCOL, DESTINATION_PORT, IP_FRAG, CT_STATE, *halves(PORT_SET)),
    leads_to=(ONWARD, DENIAL_STAGE),
    miss=Miss("to a port that the policies of the receiving Pod do not allow: deny", leads_to=DENIAL_STAGE),
)
DENIED = DENIAL_STAGE.table(
    100,
    "Denied",
    "Policies deny the packet. Does its connection exist? Then mark it, so that replies are dropped as well.",
    aside=True,
    matches=(PROTOCOL, CT_STATE, CT_SERVICE, CT_DENIED),
    sets=(CT_DENIED,),
    zones=(POD_ZONE, CLIENT_ZONE),
    miss=Miss("denied by a policy: drop"),
)
DENIED_BEFORE = DENIAL_STAGE.table(
    104,
    "DeniedBefore",
    "Was the connection denied by a policy before?",
    matches=(PROTOCOL, CT_STATE, CT_DENIED),
    sets=(CT_DENIED,),
    zones=(POD_ZONE, CLIENT_ZONE),
    leads_to=(ONWARD,),
    miss=Miss("no policy denied this connection: send it on", leads_to=ONWARD),
)
CONNTRACK_COMMIT = COMMIT_STAGE.table(
    105,
    "ConntrackCommit",
    "Is it the first packet of a connection? Then store the connection and decide its source translation.",
    matches=(
        *(PROTOCOL, IP_DESTINATION, DESTINATION_PORT),
        *(CT_STATE, CT_SERVICE, CT_MASQUERADE, SNAT, SNAT_VIRTUAL, HAIRPIN),
    ),
    sets=(CT_SNAT, IP_SOURCE),
    zones=(POD_ZONE, SNAT_ZONE, CLIENT_ZONE, CLIENT_SNAT_ZONE),
    leads_to=(ONWARD,),
    miss=Miss("of a known connection that needs no source translation, or not tracked: send it on", leads_to=ONWARD),
)
L2_FORWARDING_OUT = OUTPUT_STAGE.table(
    110,
    "L2ForwardingOut",
    "By which port does the packet leave?",
    matches=(IN_PORT, CT_STATE, CT_ZONE, SOURCE, OUT_PORT, SNAT, SNAT_VIRTUAL, MASQUERADE, HAIRPIN),
    miss=Miss("send it out of the port that L3Forwarding chose", (OutputTo(OUT_PORT.bits),)),
)

LAYOUT.complete()

# --- Priorities ------------------------------------------------------------------------------------------------------

TOP = LAYOUT.priority(220, "top", "guards that no other flow may bypass")
HIGH = LAYOUT.priority(210, "high", "exceptions to the normal flows")
NORMAL = LAYOUT.priority(200, "normal", "the cases for which the table is there")
LOW = LAYOUT.priority(190, "low", "wider cases, such as a whole PodCIDR")
PREFIX = LAYOUT.prefix_priority(300, "prefix", "the longest prefix of an address decides")
DEFAULT = LAYOUT.priority(100, "default", "all other IP packets of a family or of a kind of port")

# --- Packets that the switch hands to the agent ----------------------------------------------------------------------

REJECT = LAYOUT.reason(b"reject", "reject", "to a Service without endpoints: answer with a TCP reset or an ICMP error")

DENIAL = LAYOUT.reason(b"denied", "denied", "a policy denies the packet: log which one")

REJECTS_PER_SECOND, REJECT_BURST = 100, 200  # of each meter
POD_METERS = LAYOUT.meter_range(
    range(1, 17), "pods", "rejects of Pods; the lowest bits of a Pod's address choose the meter"
)
(HOST_METER,) = LAYOUT.meter_range(range(17, 18), "host", "rejects of the host")
(OUTSIDE_METER,) = LAYOUT.meter_range(range(18, 19), "outside", "rejects of all other clients")

DENIALS_PER_SECOND, DENIAL_BURST = 10, 50
(DENIAL_METER,) = LAYOUT.meter_range(range(19, 20), "denials", "denied packets that are logged")

# --- Addresses that no machine has -----------------------------------------------------------------------------------

VIRTUAL_MAC = LAYOUT.mac(
    mac("aa:bb:cc:dd:ee:ff"), "virtual MAC", "the one neighbour that Pods and the host's gateway interface see"
)
NODE_PORT_ADDRESS: Mapping[Family, IPAddress] = LAYOUT.address(
    "NodePort address",
    "the host translates its own addresses to this one when it connects to a NodePort",
    IPv4Address("169.254.169.110"),
    IPv6Address("fd00:169:254:169::110"),
)
VIRTUAL_CLIENT: Mapping[Family, IPAddress] = LAYOUT.address(
    "virtual client",
    "the source of connections to endpoints on this host, so that replies come back to the switch",
    IPv4Address("169.254.169.111"),
    IPv6Address("fd00:169:254:169::111"),
)
NODE_STAND_IN: Mapping[Family, IPAddress] = LAYOUT.address(
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
STAND_INS: Mapping[Family, IPNetwork] = LAYOUT.address(
    "external stand-ins",
    "the host connects to its own external address of a Service by the address with these first bits instead, because "
    "no route leads its own address to the switch; both ranges are reserved for ever",
    IPv4Network("240.0.0.0/4"),
    IPv6Network("4000::/3"),
)


def stand_in(address: IPAddress) -> IPAddress:
    """The address by which the host connects to a Service at its own address `address`."""
    reserved = STAND_INS[family_of(address)]
    return type(address)(int(reserved.network_address) | int(address) & int(reserved.hostmask))


# --- Source ports of translated connections --------------------------------------------------------------------------
# A port stays in use until its connection expires, which may be minutes after its end: so there must be many.
# They are outside of the ephemeral ports of Windows, and of those of Linux, or reserved there: so they never meet
# the host's own connections. At the Node IP they are also outside of the NodePorts. Each range is one mask: few flows,
# few megaflows. Pods and clients of Services have different ranges, so that replies are told apart before any look-up.
# `snat_ports` decides which of those at the Node IP are used.

RESERVED_SNAT_PORTS = LAYOUT.port_range(
    "Node IP", 0x3000, 0x3FFF, "pods-reserved", "the same as pods, where the host reserves ports for SNAT"
)
SNAT_PORTS = LAYOUT.port_range("Node IP", 0x4000, 0x5FFF, "pods", "Pods that connect to the outside")
SERVICE_SNAT_PORTS = LAYOUT.port_range(
    "Node IP", 0x6000, 0x6FFF, "services", "clients of Services whose endpoint is outside"
)
RESERVED_SERVICE_SNAT_PORTS = LAYOUT.port_range(
    "Node IP", 0x8000, 0xBFFF, "services-reserved", "instead of services, where the host reserves ports for SNAT"
)
GATEWAY_SNAT_PORTS = LAYOUT.port_range(
    "gateway", 0x0400, 0x7FFF, "gateway", "clients of Services that the endpoint sees as the gateway"
)
VIRTUAL_SNAT_PORTS = LAYOUT.port_range(
    "virtual client", 0x0400, 0xFFFF, "host-endpoints", "clients of Services whose endpoint is on this host"
)
