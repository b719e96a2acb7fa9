"""The stages and tables of the pipeline, in the order in which a packet passes them.

Registers are in `packet_marks`, zones and states of connections in `tracking`, the priorities of flows in `priorities`,
reserved addresses and ports in `reserved`. The pipeline page of the docs, the words of a rendered flow and the checks
all come from these declarations.
"""

from __future__ import annotations

from windlass.openflow.actions import Output, OutputTo
from windlass.openflow.fields import (
    ARP_OP,
    ARP_SENDER,
    ARP_TARGET,
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
    TCP_FLAGS,
    TUNNEL_DESTINATION,
    TUNNEL_SOURCE,
    VLAN_VID,
)
from windlass.pipeline.declarations import DECLARED, ONWARD, Miss
from windlass.pipeline.packet_marks import (
    ARP_QUERY,
    CLIENT_SNAT_ZONE,
    CLIENT_ZONE,
    ENDPOINT,
    FROM_CLIENT,
    HAIRPIN,
    MASQUERADE,
    ND_FLAGS,
    ND_OPTION,
    OUT_PORT,
    PEER_CLASS,
    PORT_SET,
    SERVICE_PORT,
    SNAT,
    SNAT_VIRTUAL,
    SOURCE,
    STICKY_GROUP,
    SUBJECT,
    TO_NODE,
)
from windlass.pipeline.registers import halves
from windlass.pipeline.tracking import (
    CT_DENIED,
    CT_ENDPOINT_PORT,
    CT_MASQUERADE,
    CT_SERVICE,
    CT_SERVICE_PORT,
    CT_SHARED,
    CT_SNAT,
    CT_TO_NODE,
    POD_ZONE,
    SNAT_ZONE,
)

# --- Stages, in the order in which a packet passes them --------------------------------------------------------------

CLASSIFY_STAGE = DECLARED.stage("classify", "Where the packet comes from, and whether it is for the host or for Pods")
SPOOF_GUARD_STAGE = DECLARED.stage("spoof guard", "Pods send only from their own addresses")
NEIGHBOUR_STAGE = DECLARED.stage("neighbours", "The switch itself answers ARP and Neighbour Discovery")
CONNTRACK_STAGE = DECLARED.stage("conntrack", "The connection of the packet, and its translation")
SERVICE_STAGE = DECLARED.stage("service", "The endpoint of a new connection to a Service")
SCTP_STAGE = DECLARED.stage("SCTP ports", "Ports of SCTP connections where connection tracking does not know them")
ROUTE_STAGE = DECLARED.stage("route", "The port by which the packet leaves")
EGRESS_POLICY_STAGE = DECLARED.stage("egress policy", "Which connections local Pods may open")
INGRESS_POLICY_STAGE = DECLARED.stage("ingress policy", "Which connections local Pods accept")
DENIAL_STAGE = DECLARED.stage("policy denials", "Connections that policies deny, and those that they allow again")
COMMIT_STAGE = DECLARED.stage("commit", "New connections are stored, with the source translation that they need")
OUTPUT_STAGE = DECLARED.stage("output", "The packet leaves")

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
    "Second step of a neighbour advertisement: write the MAC address, which the first step cannot write.",
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
    sets=(CLIENT_ZONE, CLIENT_SNAT_ZONE, SERVICE_PORT, FROM_CLIENT),
    zones=(POD_ZONE, CLIENT_ZONE),
    leads_to=(ONWARD, ROUTE_STAGE),
    miss=Miss("not IP: drop"),
)
CONNTRACK_STATE = CONNTRACK_STAGE.table(
    31,
    "ConntrackState",
    "Is the connection new, established, or invalid?",
    matches=(
        *(IN_PORT, PROTOCOL, IP_SOURCE, IP_DESTINATION, ICMP_KIND),
        *(CT_STATE, CT_SERVICE, CT_SHARED, SOURCE, FROM_CLIENT),
    ),
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
    leads_to=("EndpointDNAT", SCTP_STAGE, ONWARD),  # it leads to itself once, by the group that chooses an endpoint
    miss=Miss("to a Service with session affinity that was just deleted: drop"),
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
    "From a local Pod: which egress policies apply to it?",
    matches=(IN_PORT, PROTOCOL, CT_STATE, HAIRPIN),
    sets=(*halves(SUBJECT), *halves(PORT_SET)),
    leads_to=("EgressPeer", "EgressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("not from a Pod with policies, or a reply: no egress policy applies", leads_to=ONWARD),
)
EGRESS_PEER = EGRESS_POLICY_STAGE.table(
    76,
    "EgressPeer",
    "Which class of peers is the destination? The longest prefix decides.",
    aside=True,
    matches=(PROTOCOL, IP_DESTINATION),
    sets=halves(PEER_CLASS),
    leads_to=("EgressVerdict",),
    miss=Miss("to a destination that no rule selects: look up the verdict for all such peers", (), "EgressVerdict"),
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
    matches=(PROTOCOL, DESTINATION_PORT, IP_FRAG, CT_STATE, CT_DENIED, *halves(PORT_SET)),
    leads_to=(ONWARD, DENIAL_STAGE),
    miss=Miss("to a port that the policies of the sending Pod do not allow: deny", leads_to=DENIAL_STAGE),
)
INGRESS_SUBJECT = INGRESS_POLICY_STAGE.table(
    90,
    "IngressSubject",
    "To a local Pod: which ingress policies apply to it?",
    matches=(IN_PORT, PROTOCOL, IP_SOURCE, CT_STATE, SOURCE, OUT_PORT, HAIRPIN),
    sets=(*halves(SUBJECT), *halves(PEER_CLASS), *halves(PORT_SET)),
    leads_to=("IngressPeer", "IngressPorts", ONWARD, DENIAL_STAGE),
    miss=Miss("not to a Pod with policies, or a reply: no ingress policy applies", leads_to=ONWARD),
)
INGRESS_PEER = INGRESS_POLICY_STAGE.table(
    91,
    "IngressPeer",
    "Which class of peers is the source? The longest prefix decides.",
    aside=True,
    matches=(PROTOCOL, IP_SOURCE),
    sets=halves(PEER_CLASS),
    leads_to=("IngressVerdict",),
    miss=Miss("from a source that no rule selects: look up the verdict for all such peers", (), "IngressVerdict"),
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
    matches=(PROTOCOL, DESTINATION_PORT, IP_FRAG, CT_STATE, CT_DENIED, *halves(PORT_SET)),
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
        *(PROTOCOL, IP_SOURCE, IP_DESTINATION, SOURCE_PORT, DESTINATION_PORT, TCP_FLAGS),
        *(CT_STATE, CT_SERVICE, CT_MASQUERADE, SNAT, SNAT_VIRTUAL, HAIRPIN),
    ),
    sets=(CT_SNAT, CT_SHARED, IP_SOURCE),
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

LAYOUT = DECLARED.complete()
