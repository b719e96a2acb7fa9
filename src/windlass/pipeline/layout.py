"""Every number of the pipeline, once, with its meaning: tables, registers, marks, zones, priorities, addresses.

Numbers are those of the design notes where the notes name them, so that someone who knows the notes recognises
a dump. The pipeline page of the docs, the words of a rendered flow and the checks all come from here.
"""

from __future__ import annotations

from windlass.openflow.fields import CT_MARK, CT_STATE, Term, mac, reg
from windlass.pipeline.declarations import Layout

LAYOUT = Layout()

# --- Tables, in the order in which a packet meets them -------------------------------------------------------

CLASSIFIER = LAYOUT.table(
    0,
    "Classifier",
    "Which kind of port did the packet come in by?",
    leads_to=("Uplink", "SpoofGuard", "ARPResponder", "Conntrack"),
)
UPLINK = LAYOUT.table(
    5,
    "Uplink",
    "From the wire: is it for the host, or for a Pod?",
    leads_to=("Conntrack",),
    miss="to the host",
)
SPOOF_GUARD = LAYOUT.table(
    10,
    "SpoofGuard",
    "Does the Pod speak as itself?",
    leads_to=("ARPResponder", "Conntrack"),
)
ARP_RESPONDER = LAYOUT.table(
    20,
    "ARPResponder",
    "Who has this address? The switch answers for all, by ARP and Neighbour Discovery.",
    leads_to=("NDAdvertiser",),
)
ND_ADVERTISER = LAYOUT.table(21, "NDAdvertiser", "A solicitation become an advertisement: now it can carry the MAC.")
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
    leads_to=("L3Forwarding",),
    miss="on to L3Forwarding",
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

SNAT = LAYOUT.flag(reg(0)[17], "snat", "leaves as the Node (set in L3Forwarding, used in ConntrackCommit)")

OUT_PORT = LAYOUT.field(reg(1)[0:32], "out", "the port by which the packet will leave")

ASKED = LAYOUT.field(reg(2)[0:32], "asked", "the address that an ARP request asks for (within ARPResponder)")
ND_FLAGS = LAYOUT.field(reg(3)[0:32], "nd-flags", "the flags of an advertisement on their way there (ARPResponder)")
ND_OPTION = LAYOUT.field(reg(4)[0:8], "nd-option", "its option's type on its way there (ARPResponder)")

# --- Connection tracking ------------------------------------------------------------------------------------------

POD_ZONE = 65520  # one zone for both families: a connection's addresses tell them apart

CT_SNAT = LAYOUT.flag(CT_MARK[6], "ct-snat", "the connection leaves as the Node (0x40, as in the design notes)")

NEW: Term = CT_STATE(0x21, 0x21)  # +new+trk
INVALID: Term = CT_STATE(0x30, 0x30)  # +inv+trk
UNTRACKED: Term = CT_STATE(0, 0x20)  # -trk

# --- Priorities ------------------------------------------------------------------------------------------------------

TOP = 220
HIGH = 210
NORMAL = 200
LOW = 190
MISS = 0

# --- Addresses --------------------------------------------------------------------------------------------------------

VIRTUAL_MAC = mac("aa:bb:cc:dd:ee:ff")  # the one neighbour that Pods and the gateway see

# Ports of the Node that translated Pod connections use. Outside of the NodePorts and of the ephemeral ports of Linux
# and Windows, so that the host's own connections never meet one; 16384-28671 is two masks: few flows, few megaflows.
SNAT_PORTS = (0x4000, 0x6FFF)
SNAT_PORT_MASKS = ((0x4000, 0xE000), (0x6000, 0xF000))
