"""Frontends of Services: from the address that a client connects to, to a group of endpoints (design notes 000 to 002).

A frontend is a flow in ServiceLB. `service_flows` are the flows of one Service, `flows` those that all Services share.
Endpoints are in `endpoint_groups` and `host_endpoints`, source translation is in `service_snat`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import LocalNode
from windlass.model.services import Frontend, Protocol, Reach, ServedPort, ServedService
from windlass.openflow.conditions import destination, destination_port, ip, protocol, source, source_bits
from windlass.openflow.fields import Term
from windlass.openflow.flows import Flow
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.endpoint_groups import affinity_flows, group_count, served_ports, to_group, to_groups
from windlass.pipeline.host_endpoints import reply_flows
from windlass.pipeline.layout import (
    CONNTRACK_STAGE,
    CONNTRACK_STATE,
    NODE_PORT_FILTER,
    SERVICE_LB,
    SERVICE_REJECT,
    SERVICE_STAGE,
    UPLINK,
)
from windlass.pipeline.packet_marks import FROM_GATEWAY, FROM_POD, MASQUERADE, TO_NODE
from windlass.pipeline.priorities import HIGH, LOW, NORMAL
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, stand_in
from windlass.pipeline.tracking import NEW

_LOOK_UP = goto(CONNTRACK_STAGE)
_REJECT = goto(SERVICE_REJECT)


def flows(node: LocalNode) -> Iterator[Flow]:
    """First packets of connections: which of them may be to a Service."""
    for family in node.families:
        yield from new_connections(node, family)


def new_connections(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield CONNTRACK_STATE.flow(NORMAL, NEW, ip(family)).then(
        goto(SERVICE_STAGE), why="new connection: check whether it is to a Service"
    )
    # From outside: a neighbour routes ClusterIPs to this Node, or the client is behind another NIC.
    yield CONNTRACK_STATE.flow(NORMAL + 1, NEW, ip(family), FROM_GATEWAY).then(
        MASQUERADE.set(),
        goto(SERVICE_STAGE),
        why="new connection that the host forwards: masquerade it if it is to a ClusterIP, so that replies return here",
    )
    yield CONNTRACK_STATE.flow(NORMAL + 2, NEW, _node_itself(node, family)).then(
        goto(SERVICE_STAGE), why="new connection of the Node itself: check whether it is to a Service"
    )
    for address in node_port_addresses(node, family):
        yield CONNTRACK_STATE.flow(HIGH, NEW, destination(address)).then(
            TO_NODE.set(), goto(SERVICE_STAGE), why="new connection to the Node: check whether it is to a NodePort"
        )


def node_port_addresses(node: LocalNode, family: Family) -> Iterator[IPAddress]:
    """The destination addresses of packets to NodePorts."""
    yield from filter(node.serves_node_ports, node.own_addresses(family))
    yield NODE_PORT_ADDRESS[family]  # which the host writes in place of its own addresses that serve NodePorts


def service_flows(node: LocalNode, service: ServedService) -> Iterator[Flow]:
    for port in served_ports(node, service):
        for frontend in port.frontends:
            if frontend.address is None or not frontend.address.is_loopback:  # only the host itself connects there
                yield from from_the_wire(service, port, frontend)
                yield from serves(node, service, port, frontend)
                yield from fragments(node, service, port, frontend)
            if frontend.reach is Reach.EXTERNAL and frontend.address is not None:
                # If it is an address of the host itself: connections of the host, and those by its other NICs.
                own = replace(frontend, address=stand_in(frontend.address))
                yield from serves(node, service, port, own, stands_for=frontend.address)
        if port.affinity_seconds:
            yield from affinity_flows(node, service, port)
    yield from fragments_from_the_wire(node, service)
    yield from reply_flows(node, service)
    for address in service.cluster_ips:
        if family_of(address) in node.families:
            yield SERVICE_LB.flow(LOW, destination(address)).then(
                _REJECT, why=f"to Service {service.key}, which has no such port: reject"
            )


def from_the_wire(service: ServedService, port: ServedPort, frontend: Frontend) -> Iterator[Flow]:
    """Only packets to Services that are reachable from outside are taken out of the host's traffic."""
    ports = destination_port(port.family, port.protocol, frontend.port)
    match frontend.reach:
        case Reach.NODE_PORT:
            yield NODE_PORT_FILTER.flow(NORMAL, ports).then(
                _LOOK_UP, why=f"to a NodePort of Service {service.key}: look up its connection"
            )
        case Reach.EXTERNAL if frontend.address is not None:
            yield UPLINK.flow(NORMAL, destination(frontend.address), ports).then(
                _LOOK_UP, why=f"to an external address of Service {service.key}: look up its connection"
            )


def fragments_from_the_wire(node: LocalNode, service: ServedService) -> Iterator[Flow]:
    """Fragments to external addresses; those to the Node IP are looked up anyway. Services can share such a flow."""
    frontends = (frontend for port in served_ports(node, service) for frontend in port.frontends)
    external = (f.address for f in frontends if f.reach is Reach.EXTERNAL and f.address is not None)
    for address in dict.fromkeys(external):
        if address != node.addresses[family_of(address)].ip:
            yield UPLINK.flow(NORMAL, destination(address), ANY_FRAGMENT).then(
                _LOOK_UP, why="fragment to an external address of Services: look up its connection"
            )


def serves(
    node: LocalNode, service: ServedService, port: ServedPort, frontend: Frontend, stands_for: IPAddress | None = None
) -> Iterator[Flow]:
    """`stands_for`: the host's own address, if the frontend has its stand-in."""
    family, *to_port = destination_port(port.family, port.protocol, frontend.port)
    # In the order of the fields, each once: then `match` has nothing to sort, for ten thousand Services.
    addressed = (family, *to_port, *TO_NODE) if frontend.address is None else (*destination(frontend.address), *to_port)
    if frontend.sources is None:
        yield from _balanced(node, service, port, frontend, addressed, (), from_node=True)
        return
    for allowed in frontend.sources:
        yield from _balanced(node, service, port, frontend, addressed, source(allowed), from_node=False)
    not_allowed = f"to Service {service.key} from a source outside of its loadBalancerSourceRanges: drop"
    itself = {node.addresses[port.family].ip, stands_for} - {None}
    if any(address in allowed for allowed in frontend.sources for address in itself):
        yield from _from_node(node, service, port, addressed)
    else:  # also if a range contains the gateway, which is the source of the Node's own connections
        yield SERVICE_LB.flow(HIGH, addressed, _node_itself(node, port.family)).drop(why=not_allowed)
    yield SERVICE_LB.flow(LOW + 1, addressed).drop(why=not_allowed)


def fragments(node: LocalNode, service: ServedService, port: ServedPort, frontend: Frontend) -> Iterator[Flow]:
    """A flow cannot match the port of a fragmented datagram. A ClusterIP with only one UDP port needs none.

    Connection tracking waits for all fragments and then applies to them the action of the last one: it does not matter
    that the group may choose different endpoints for them. But it keeps fragments of different recirculations apart, so
    one flow must take all fragments of a datagram.
    """
    if datapath_of(node).reassembles or port.protocol is not Protocol.UDP or frontend.reach is not Reach.CLUSTER_IP:
        return
    endpoints = port.local_endpoints if frontend.local_only else port.endpoints
    alone = sum(other.protocol is Protocol.UDP and other.family is port.family for other in service.ports) == 1
    if frontend.address is None or not endpoints or not alone:
        return
    # For IPv6, only the first fragment is known to be UDP, but other protocols rarely begin in fragments.
    transport = protocol(port.family, port.protocol) if port.family is Family.IPV4 else ()
    to_address = (*destination(frontend.address), *transport, ANY_FRAGMENT)
    count = group_count(endpoints) if port.affinity_seconds else 1
    for number in range(count):
        share = source_bits(port.family, number, count - 1) if count > 1 else ()
        yield SERVICE_LB.flow(LOW + 1, to_address, share).then(
            *to_group(port, number, local=frontend.local_only),
            why=f"fragment to Service {service.key}: choose an endpoint",
        )


def _balanced(
    node: LocalNode,
    service: ServedService,
    port: ServedPort,
    frontend: Frontend,
    addressed: tuple[Term, ...],
    origin: tuple[Term, ...],
    *,
    from_node: bool,
) -> Iterator[Flow]:
    name = f"Service {service.key}"
    if not port.anywhere:
        yield SERVICE_LB.flow(NORMAL, addressed, origin).then(_REJECT, why=f"to {name}, which has no endpoints: reject")
    elif not frontend.local_only:
        # A client of a NodePort or of an external address may be anywhere: replies must return by this Node.
        masquerade = () if frontend.reach is Reach.CLUSTER_IP else (MASQUERADE.set(),)
        yield from to_groups(
            port, NORMAL, (addressed, origin), masquerade, local=False, why=f"to {name}: choose an endpoint"
        )
    else:
        if frontend.reach is not Reach.CLUSTER_IP:
            # Policy Local applies to clients from outside; Pods and the Node itself use all endpoints.
            why = f"from a Pod to {name}: choose an endpoint on any Node"
            yield from to_groups(port, HIGH, (addressed, origin, FROM_POD), (), local=False, why=why)
            if from_node:
                yield from _from_node(node, service, port, addressed)
        if port.local_endpoints:
            preserve = (MASQUERADE.clear(),) if frontend.reach is Reach.EXTERNAL else ()
            why = f"to {name}, policy Local: choose an endpoint on this Node"
            yield from to_groups(port, NORMAL, (addressed, origin), preserve, local=True, why=why)
        else:
            yield SERVICE_LB.flow(NORMAL, addressed, origin).drop(
                why=f"to {name}, policy Local, without an endpoint on this Node: drop"
            )


def _node_itself(node: LocalNode, family: Family) -> tuple[Term, ...]:
    """Its connections to Services come from the gateway interface, with the gateway's address."""
    return (*source(node.gateway(family)), *FROM_GATEWAY)


def _from_node(
    node: LocalNode, service: ServedService, port: ServedPort, addressed: tuple[Term, ...]
) -> Iterator[Flow]:
    when = (addressed, _node_itself(node, port.family))
    if port.anywhere:
        yield from to_groups(
            port, HIGH, when, (), local=False, why=f"from the Node to Service {service.key}: choose an endpoint"
        )
    else:
        yield SERVICE_LB.flow(HIGH, *when).then(
            _REJECT, why=f"to Service {service.key}, which has no endpoints: reject"
        )
