"""Every number of the pipeline, once, with its meaning: tables, registers, marks, zones, priorities, addresses.

Numbers are those of the design notes where the notes name them, so that someone who knows the notes recognises
a dump. The pipeline page of the docs, the words of a rendered flow and the checks all come from here.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.openflow.fields import CT_LABEL, CT_MARK, CT_STATE, Term, mac, reg
from windlass.pipeline.declarations import Layout

LAYOUT = Layout()

# --- Tables, in the order in which a packet meets them -------------------------------------------------------

CLASSIFIER = LAYOUT.table(
    0,
    "Classifier",
    "Which kind of port did the packet come in by?",
    leads_to=("Uplink", "SpoofGuard", "ARPResponder", "UnSNAT"),
)
UPLINK = LAYOUT.table(
    5,
    "Uplink",
    "From the wire: is it for the host, for a Pod, or for a Service?",
    leads_to=("NodePortFilter", "UnSNAT"),
    miss="to the host",
)
NODE_PORT_FILTER = LAYOUT.table(
    6,
    "NodePortFilter",
    "To the Node's own address: is its port a NodePort?",
    leads_to=("UnSNAT",),
    miss="to the host",
)
SPOOF_GUARD = LAYOUT.table(
    10,
    "SpoofGuard",
    "Does the Pod speak as itself?",
    leads_to=("ARPResponder", "UnSNAT"),
)
ARP_RESPONDER = LAYOUT.table(
    20,
    "ARPResponder",
    "Who has this address? The switch answers for all, by ARP and Neighbour Discovery.",
    leads_to=("NDAdvertiser",),
)
ND_ADVERTISER = LAYOUT.table(21, "NDAdvertiser", "A solicitation become an advertisement: now it can carry the MAC.")
UN_SNAT = LAYOUT.table(
    25,
    "UnSNAT",
    "Is it an answer to a Service's connection that was given another source? Back to that source first.",
    leads_to=("SCTPDirection", "Conntrack", "L3Forwarding"),
    miss="on to Conntrack",
)
SCTP_DIRECTION = LAYOUT.table(
    26,
    "SCTPDirection",
    "SCTP where its ports are not tracked: is the client's port the one that it goes to, and so is it an answer?",
    leads_to=("Conntrack",),
)
CONNTRACK = LAYOUT.table(
    30,
    "Conntrack",
    "Which connection does it belong to? Translated as that one was.",
    leads_to=("ConntrackState", "L3Forwarding"),
)
CONNTRACK_STATE = LAYOUT.table(
    31,
    "ConntrackState",
    "What does the state of its connection say?",
    leads_to=("ServiceLB", "SCTPPorts", "L3Forwarding"),
    miss="on to L3Forwarding",
)
SERVICE_LB = LAYOUT.table(
    41,
    "ServiceLB",
    "The first packet of a connection: is it for a Service, and which endpoint serves it?",
    leads_to=("SessionAffinity", "EndpointDNAT", "ServiceReject", "SCTPPorts", "L3Forwarding"),
    miss="on to L3Forwarding",
)
SESSION_AFFINITY = LAYOUT.table(
    42,
    "SessionAffinity",
    "Which endpoint served this client last? A look-up in flows that the switch writes itself; then EndpointDNAT.",
)
ENDPOINT_DNAT = LAYOUT.table(
    43,
    "EndpointDNAT",
    "For a Service with session affinity: to the endpoint that is remembered, or to one that will be.",
    leads_to=("EndpointDNAT", "SCTPPorts", "L3Forwarding"),
    once_more=True,  # by the group, which names an endpoint
)
SERVICE_REJECT = LAYOUT.table(
    45,
    "ServiceReject",
    "To a Service that nothing serves: which meter limits how often the agent is asked to reject it?",
    miss="to the agent",
)
SCTP_PORTS = LAYOUT.table(
    60,
    "SCTPPorts",
    "SCTP where its ports are not tracked, to a Service: the port that its connection remembers.",
    leads_to=("L3Forwarding",),
)
L3_FORWARDING = LAYOUT.table(
    70,
    "L3Forwarding",
    "Where is this address: a local Pod, the host, a peer, or outside?",
    leads_to=("ConntrackCommit",),
)
CONNTRACK_COMMIT = LAYOUT.table(
    105,
    "ConntrackCommit",
    "Is it the first of its connection? Remember it, and decide its translation.",
    leads_to=("L2ForwardingOut",),
)
L2_FORWARDING_OUT = LAYOUT.table(110, "L2ForwardingOut", "Out of the port that was chosen.", miss="out of that port")

LAYOUT.complete()

# --- Registers: they live from the table that sets them to the packet's end ------------------------------------

SOURCE = LAYOUT.field(reg(0)[0:16], "source", "the kind of port by which the packet came in")
FROM_TUNNEL = SOURCE.mark(0, "Tunnel")
FROM_GATEWAY = SOURCE.mark(1, "Gateway")
FROM_POD = SOURCE.mark(2, "Pod")
FROM_UPLINK = SOURCE.mark(4, "Uplink")
FROM_BRIDGE = SOURCE.mark(5, "Bridge")
FROM_HOST_ENDPOINT = SOURCE.mark(6, "HostEndpoint")  # by the bridge as well: perhaps a Service's answer

SNAT = LAYOUT.flag(reg(0)[17], "snat", "leaves as the Node (set in L3Forwarding, used in ConntrackCommit)")
TO_NODE = LAYOUT.flag(reg(0)[18], "to-node", "addressed to the Node itself: perhaps to a NodePort (ConntrackState)")
MASQUERADE = LAYOUT.flag(reg(0)[19], "masquerade", "a Service's client that must be seen as the gateway (ServiceLB)")
SNAT_VIRTUAL = LAYOUT.flag(
    reg(0)[20],
    "snat-virtual",
    "leaves as the virtual client: the host's answers come back to the switch (L3Forwarding)",
)
HAIRPIN = LAYOUT.flag(reg(0)[21], "hairpin", "leaves by the port it came in by (set in L3Forwarding)")

OUT_PORT = LAYOUT.field(reg(1)[0:32], "out", "the port by which the packet will leave")

STICKY_GROUP = LAYOUT.field(
    reg(5)[0:32], "sticky-group", "the endpoints of a Service with session affinity (ServiceLB)"
)
ENDPOINT = LAYOUT.field(reg(6)[0:32], "endpoint", "the one among them that serves (SessionAffinity or the group)")

CLIENT_ZONE = LAYOUT.field(
    reg(7)[0:16], "client-zone", "the zone of an SCTP connection: its client's port (SCTPDirection, Conntrack)"
)
CLIENT_SNAT_ZONE = LAYOUT.field(
    reg(7)[16:32], "client-snat-zone", "the same, turned by one bit, for another source (UnSNAT, Conntrack)"
)
ASKED_PORT = LAYOUT.field(reg(8)[0:16], "asked-port", "where an SCTP packet goes, before it is translated (Conntrack)")

ASKED = LAYOUT.field(reg(2)[0:32], "asked", "the address that an ARP request asks for (within ARPResponder)")
ND_FLAGS = LAYOUT.field(reg(3)[0:32], "nd-flags", "the flags of an advertisement on their way there (ARPResponder)")
ND_OPTION = LAYOUT.field(reg(4)[0:8], "nd-option", "its option's type on its way there (ARPResponder)")

# --- Connection tracking ------------------------------------------------------------------------------------------

POD_ZONE = 65520  # one zone for both families: a connection's addresses tell them apart
SNAT_ZONE = 65521  # a Service's connection that needs another source as well: one translation per zone and commit

CT_TO_NODE = LAYOUT.flag(CT_MARK[3], "ct-to-node", "a Service's connection that was addressed to the Node itself")
CT_MASQUERADE = LAYOUT.flag(CT_MARK[4], "ct-masquerade", "a Service's connection whose client is seen as the gateway")
CT_SERVICE = LAYOUT.flag(CT_MARK[5], "ct-service", "a connection to a Service (0x20, as in the design notes)")
CT_SNAT = LAYOUT.flag(CT_MARK[6], "ct-snat", "the connection leaves as the Node (0x40, as in the design notes)")

# What a connection to a Service remembers of its first packet: two neighbouring bits, so that one move is enough.
SERVICE_FLAGS, CT_SERVICE_FLAGS = reg(0)[18:20], CT_MARK[3:5]

CT_ENDPOINT_PORT = LAYOUT.field(CT_LABEL[0:16], "ct-endpoint-port", "the endpoint's port, of an SCTP connection")
CT_ASKED_PORT = LAYOUT.field(CT_LABEL[16:32], "ct-asked-port", "the port that its client asked")

NEW: Term = CT_STATE(0x21, 0x31)  # +new-inv+trk
NOT_TRANSLATED: Term = CT_STATE(0x21, 0x71)  # +new-inv+trk-snat: a commit with another source that found no port
ESTABLISHED_ORIGINAL: Term = CT_STATE(0x20, 0x29)  # -new-rpl+trk: in the direction of the connection's first packet
ANSWER: Term = CT_STATE(0x28, 0x28)  # +rpl+trk
ORIGINAL: Term = CT_STATE(0x20, 0x28)  # -rpl+trk
RELATED: Term = CT_STATE(0x24, 0x35)  # -new+rel-inv+trk: an ICMP error about a connection
RELATED_ORIGINAL: Term = CT_STATE(0x24, 0x3D)  # the same, -rpl: about an answer, in the direction of the first packet
RELATED_ANSWER: Term = CT_STATE(0x2C, 0x3D)  # the same, +rpl: about a packet of the client
INVALID: Term = CT_STATE(0x30, 0x30)  # +inv+trk
VALID: Term = CT_STATE(0x20, 0x30)  # -inv+trk
UNTRACKED: Term = CT_STATE(0, 0x20)  # -trk

# --- Meters: packets that the switch hands to the agent to be rejected ------------------------------------------

POD_METERS = range(1, 17)  # a power of two: the lowest bits of a Pod's address choose
HOST_METER = 17
OUTSIDE_METER = 18
REJECTS_PER_SECOND, REJECT_BURST = 100, 200  # of each meter

# --- Priorities ------------------------------------------------------------------------------------------------------

TOP = 220
HIGH = 210
NORMAL = 200
LOW = 190
MISS = 0

# --- Addresses --------------------------------------------------------------------------------------------------------

VIRTUAL_MAC = mac("aa:bb:cc:dd:ee:ff")  # the one neighbour that Pods and the gateway see

# What the host addresses NodePorts by, once it has translated its own address; and as whom its own connections to
# endpoints on itself come to it. Both are behind the gateway, and nobody's.
NODE_PORT_ADDRESS: dict[Family, IPAddress] = {
    Family.IPV4: IPv4Address("169.254.169.110"),
    Family.IPV6: IPv6Address("fd00:169:254:169::110"),
}
VIRTUAL_CLIENT: dict[Family, IPAddress] = {
    Family.IPV4: IPv4Address("169.254.169.111"),
    Family.IPV6: IPv6Address("fd00:169:254:169::111"),
}
# What the host writes in place of the Node IP on packets for Pods that left as the Node: its own ICMP errors, and
# replies by NICs that are not ports of the switch. The switch puts the Node IP back.
NODE_STAND_IN: dict[Family, IPAddress] = {
    Family.IPV4: IPv4Address("169.254.169.112"),
    Family.IPV6: IPv6Address("fd00:169:254:169::112"),
}

# All three: only the host itself may address them, and nobody else may send from them.
VIRTUAL_ADDRESSES: dict[Family, tuple[IPNetwork, ...]] = {
    Family.IPV4: (IPv4Network("169.254.169.110/31"), IPv4Network("169.254.169.112/32")),
    Family.IPV6: (IPv6Network("fd00:169:254:169::110/127"), IPv6Network("fd00:169:254:169::112/128")),
}

# An external address may be the host's own, which no route leads to the switch: then the host sends to its stand-in,
# the same but for the first bits. They are of ranges that are reserved for ever, and nobody's.
STAND_INS: dict[Family, IPNetwork] = {Family.IPV4: IPv4Network("240.0.0.0/4"), Family.IPV6: IPv6Network("4000::/3")}


def stand_in(address: IPAddress) -> IPAddress:
    reserved = STAND_INS[family_of(address)]
    return type(address)(int(reserved.network_address) | int(address) & int(reserved.hostmask))


# Ports that translated connections use. A port is taken until its connection is forgotten, which is minutes after its
# end, so there must be many. They are outside of the ephemeral ports of Linux and Windows, so that the host's own
# connections never meet one. Each range is one mask: few flows, few megaflows.
# As the Node, also outside of the NodePorts. Pods that leave as their Node, and clients of Services, have a range each:
# so their answers are told apart before any look-up.
SNAT_PORTS = (0x4000, 0x5FFF)
SNAT_PORT_MASK = (0x4000, 0xE000)
SERVICE_SNAT_PORTS = (0x6000, 0x6FFF)
SERVICE_SNAT_PORT_MASK = (0x6000, 0xF000)
NODE_SNAT_PORTS = (SNAT_PORTS[0], SERVICE_SNAT_PORTS[1])  # both ranges, which are adjacent
# As the gateway, where besides only the host's own connections are; as the virtual client, where nobody is.
GATEWAY_SNAT_PORTS = (0x0400, 0x7FFF)
GATEWAY_SNAT_PORT_MASK = (0x0000, 0x8000)
VIRTUAL_SNAT_PORTS = (0x0400, 0xFFFF)
