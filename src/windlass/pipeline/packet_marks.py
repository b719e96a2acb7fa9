"""What a packet carries from table to table: registers, from the table that sets them to the end of its path.

Numbers are those of the design notes where the notes name them, so that a reader of the notes recognises a dump.
"""

from __future__ import annotations

from windlass.openflow.fields import reg
from windlass.pipeline.declarations import DECLARED

SOURCE = DECLARED.field(reg(0)[0:16], "source", "the kind of port on which the packet was received")
FROM_TUNNEL = SOURCE.mark(0, "Tunnel")
FROM_GATEWAY = SOURCE.mark(1, "Gateway")
FROM_POD = SOURCE.mark(2, "Pod")
FROM_UPLINK = SOURCE.mark(4, "Uplink")
FROM_BRIDGE = SOURCE.mark(5, "Bridge")
FROM_HOST_ENDPOINT = SOURCE.mark(6, "HostEndpoint")  # from the bridge as well: perhaps a reply of a Service

SNAT = DECLARED.flag(reg(0)[17], "snat", "leaves with the Node IP as source")
TO_NODE = DECLARED.flag(reg(0)[18], "to-node", "addressed to the Node itself: perhaps to a NodePort")
MASQUERADE = DECLARED.flag(reg(0)[19], "masquerade", "to a Service whose endpoint must see the gateway as the client")
SNAT_VIRTUAL = DECLARED.flag(
    reg(0)[20], "snat-virtual", "leaves with the virtual client as source, so that the host's replies come back"
)
HAIRPIN = DECLARED.flag(reg(0)[21], "hairpin", "leaves by the port on which it was received")
FROM_CLIENT = DECLARED.flag(
    reg(0)[22], "from-client", "an SCTP packet whose destination port is not that of a known client"
)
OUT_PORT = DECLARED.field(reg(1)[0:32], "out", "the port by which the packet leaves")
ARP_QUERY = DECLARED.field(reg(2)[0:32], "arp-query", "the address that an ARP request asks for")
ND_FLAGS = DECLARED.field(reg(3)[0:32], "nd-flags", "the flags to write into a neighbour advertisement")
ND_OPTION = DECLARED.field(reg(4)[0:8], "nd-option", "the option type to write into a neighbour advertisement")
STICKY_GROUP = DECLARED.field(reg(5)[0:32], "sticky-group", "the group of a Service port with session affinity")
ENDPOINT = DECLARED.field(reg(6)[0:32], "endpoint", "the endpoint of that group which serves this client; 0: none yet")
CLIENT_ZONE = DECLARED.field(reg(7)[0:16], "client-zone", "the zone of an SCTP connection: its client's port")
CLIENT_SNAT_ZONE = DECLARED.field(
    reg(7)[16:32], "client-snat-zone", "its zone for source translation: the client's port, rotated left by one bit"
)
SERVICE_PORT = DECLARED.field(reg(8)[0:16], "service-port", "the destination port of an SCTP packet before translation")
SUBJECT = DECLARED.wide_field(reg(10), reg(11), "subject", "the policies of a local Pod, as a digest")
PEER_CLASS = DECLARED.wide_field(reg(12), reg(13), "peer-class", "the class of the peer, as a digest; 0: none")
PORT_SET = DECLARED.wide_field(reg(14), reg(15), "port-set", "the ports that policies allow, as a digest")
