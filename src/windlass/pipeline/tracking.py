"""Connection tracking: its zones, what a connection stores in its mark and label, and the states of packets."""

from __future__ import annotations

from windlass.openflow.fields import CT_LABEL, CT_MARK, CT_STATE, Term
from windlass.pipeline.declarations import DECLARED
from windlass.pipeline.packet_marks import MASQUERADE, TO_NODE
from windlass.pipeline.registers import adjacent

POD_ZONE = DECLARED.zone(65520, "pods", "all connections of Pods and Services, of both families")
SNAT_ZONE = DECLARED.zone(
    65521, "sources", "the source translation of Service connections: a zone holds one translation of a connection"
)

CT_TO_NODE = DECLARED.flag(CT_MARK[3], "ct-to-node", "a Service connection that was addressed to the Node itself")
CT_MASQUERADE = DECLARED.flag(CT_MARK[4], "ct-masquerade", "a Service connection whose endpoint sees the gateway")
CT_SERVICE = DECLARED.flag(CT_MARK[5], "ct-service", "a connection to a Service (0x20, as in the design notes)")
CT_SNAT = DECLARED.flag(
    CT_MARK[6], "ct-snat", "a Pod connection that leaves as the Node (0x40, as in the design notes)"
)
CT_DENIED = DECLARED.flag(CT_MARK[7], "ct-denied", "a connection that existed when a policy denied it")
CT_SHARED = DECLARED.flag(
    CT_MARK[8], "ct-shared", "an SCTP entry outside the zone of its client's port: other connections may find it"
)
CT_ENDPOINT_PORT = DECLARED.field(CT_LABEL[0:16], "ct-endpoint-port", "the endpoint's port of an SCTP connection")
CT_SERVICE_PORT = DECLARED.field(CT_LABEL[16:32], "ct-service-port", "the Service port of an SCTP connection")

# The flags of its first packet that a Service connection stores.
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
OPENING_TRACKED: Term = CT_STATE(0x20, 0x2C)  # -rel-rpl+trk
VALID: Term = CT_STATE(0x20, 0x30)  # -inv+trk
UNTRACKED: Term = CT_STATE(0, 0x20)  # -trk
