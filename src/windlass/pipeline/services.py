"""Services: from the address that a client knows to an endpoint, and back (design notes 000, 001, 002).

A frontend is a flow in ServiceLB, its endpoints are the buckets of a group, and a bucket commits the connection to its
endpoint: no flow per endpoint, and none for the packets that follow. `service_flows` is what one Service asks for;
`flows` is what all of them share, and where another source is given to a connection that needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec.structs import replace

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, Service, ServicePort
from windlass.openflow.actions import Action, Ct, Move, Nat, Output, Set, ToGroup
from windlass.openflow.fields import (
    IN_PORT,
    LOCAL_PORT,
    Term,
    destination,
    destination_port,
    icmp,
    ip,
    protocol,
    source,
    source_port,
)
from windlass.openflow.flows import Bucket, Flow, Group, Translations
from windlass.openflow.matches import Condition
from windlass.pipeline import affinity, sctp
from windlass.pipeline.connections import ANY_FRAGMENT, host_protocols
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.icmp_errors import ICMP_ERRORS
from windlass.pipeline.layout import (
    CLASSIFIER,
    CONNTRACK,
    CONNTRACK_COMMIT,
    CONNTRACK_STATE,
    CT_MASQUERADE,
    CT_SERVICE,
    CT_SERVICE_FLAGS,
    ESTABLISHED_ORIGINAL,
    FROM_GATEWAY,
    FROM_HOST_ENDPOINT,
    FROM_POD,
    FROM_TUNNEL,
    FROM_UPLINK,
    GATEWAY_SNAT_PORT_MASK,
    GATEWAY_SNAT_PORTS,
    HAIRPIN,
    HIGH,
    L2_FORWARDING_OUT,
    L3_FORWARDING,
    LOW,
    MASQUERADE,
    MISS,
    NEW,
    NODE_PORT_ADDRESS,
    NODE_PORT_FILTER,
    NORMAL,
    POD_ZONE,
    RELATED_ORIGINAL,
    SERVICE_FLAGS,
    SERVICE_LB,
    SERVICE_REJECT,
    SERVICE_SNAT_PORT_MASK,
    SERVICE_SNAT_PORTS,
    SNAT,
    SNAT_VIRTUAL,
    SNAT_ZONE,
    TO_NODE,
    TOP,
    UN_SNAT,
    UPLINK,
    VIRTUAL_CLIENT,
    VIRTUAL_SNAT_PORTS,
    stand_in,
)
from windlass.pipeline.routing import out_of_gateway

GROUP_SIZE = 500  # a dump of a group must fit 64 KiB, or ovs-vswitchd dies of it; a bucket takes up to 120 bytes


# --- what all Services share ----------------------------------------------------------------------------------------


def flows(node: LocalNode) -> Iterator[Flow]:
    yield UN_SNAT.flow(MISS).then(goto(CONNTRACK), why="no answer of that kind")
    yield SERVICE_LB.flow(MISS).then(goto(L3_FORWARDING), why="for no Service")
    yield NODE_PORT_FILTER.flow(MISS).then(Output(LOCAL_PORT), why="no NodePort: the host's own")
    for family in node.families:
        yield from answers(node, family)
        yield from first_packets(node, family)
        yield from to_endpoints(node, family)
        yield from translations(node, family)


def answers(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Answers to clients that were given another source."""
    node_ip = node.addresses[family].ip
    undo = Ct(SNAT_ZONE, table=CONNTRACK.number, nat=Nat())
    for number in datapath_of(node).transports:
        ours = destination_port(family, number, *SERVICE_SNAT_PORT_MASK)
        by_gateway = destination_port(family, number, *GATEWAY_SNAT_PORT_MASK)
        yield UN_SNAT.flow(NORMAL, destination(node.gateway(family)), by_gateway).then(
            undo, why="an endpoint answers a client that it knows as the gateway"
        )
        yield UPLINK.flow(NORMAL, destination(node_ip), ours).then(
            goto(UN_SNAT), why="to a port that clients of Services use as the Node: an answer to one of them?"
        )
        yield UN_SNAT.flow(NORMAL, FROM_UPLINK, destination(node_ip), ours).then(
            undo, why="an endpoint outside answers a client that it knows as the Node"
        )
    for when in (destination(node.gateway(family)), (*FROM_UPLINK, *destination(node_ip))):
        yield UN_SNAT.flow(NORMAL, when, ANY_FRAGMENT).then(
            undo, why="a fragment has no port to tell: perhaps of an answer to such a client"
        )
        for kind in ICMP_ERRORS[family] if datapath_of(node).icmp_errors else ():
            yield UN_SNAT.flow(NORMAL, when, icmp(family, kind)).then(
                undo, why="an error: about what such a client sent?"
            )
    yield UN_SNAT.flow(NORMAL, FROM_GATEWAY, destination(VIRTUAL_CLIENT[family])).then(
        undo, why="an endpoint on this host answers the host itself, or a client from outside"
    )


def first_packets(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield CONNTRACK_STATE.flow(NORMAL, NEW, ip(family)).then(goto(SERVICE_LB), why="a new connection: to a Service?")
    # From outside: a neighbour routes ClusterIPs to this Node, or the client came by another NIC.
    yield CONNTRACK_STATE.flow(NORMAL + 1, NEW, ip(family), FROM_GATEWAY).then(
        MASQUERADE.set(),
        goto(SERVICE_LB),
        why="a new connection that the host forwards: if to a ClusterIP, the endpoint must answer by way of this Node",
    )
    yield CONNTRACK_STATE.flow(NORMAL + 2, NEW, _node_itself(node, family)).then(
        goto(SERVICE_LB), why="a new connection of the Node itself: to a Service?"
    )
    for address in node_port_addresses(node, family):
        yield CONNTRACK_STATE.flow(HIGH, NEW, destination(address)).then(
            TO_NODE.set(), goto(SERVICE_LB), why="a new connection to the Node itself: to a NodePort?"
        )
    if node.serves_node_ports(node.addresses[family].ip):
        of_host = [protocol(family, n) for n in host_protocols(family)] if datapath_of(node).others else [()]
        for transport in of_host:
            yield UPLINK.flow(LOW, destination(node.addresses[family].ip), transport).then(
                goto(NODE_PORT_FILTER), why="to the Node: perhaps to a NodePort"
            )


def node_port_addresses(node: LocalNode, family: Family) -> Iterator[IPAddress]:
    yield from filter(node.serves_node_ports, node.own_addresses(family))
    yield NODE_PORT_ADDRESS[family]  # what the host makes of its other addresses, having asked the same question


def to_endpoints(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Endpoints that are no Pods; Pods are where they always are (`routing`), and so is the host for those who stay."""
    # Who comes by another NIC stays who he is, if the host can answer him by way of the switch.
    routes_answers = datapath_of(node).routes_answers
    itself = source(node.gateway(family)) if routes_answers else ()
    for address in node.own_addresses(family):
        to_host = destination(address)
        yield L3_FORWARDING.flow(HIGH, FROM_GATEWAY, CT_SERVICE, CT_MASQUERADE.unset, itself, to_host).then(
            SNAT_VIRTUAL.set(),
            *out_of_gateway(node),
            why="the host to an endpoint on itself: its answer must come back here",
        )
        for origin in (FROM_GATEWAY, FROM_UPLINK, FROM_POD):
            # Not as the gateway, which is the host's own address: it would answer itself.
            yield L3_FORWARDING.flow(HIGH, origin, CT_SERVICE, CT_MASQUERADE, to_host).then(
                SNAT_VIRTUAL.set(), *out_of_gateway(node), why="to an endpoint on this host, by policy Cluster"
            )
    yield L3_FORWARDING.flow(MISS, ip(family), FROM_UPLINK, CT_SERVICE.unset).then(
        Output(LOCAL_PORT), why="from the wire, for no Pod and no Service: deliver to the host"
    )
    for origin in (FROM_GATEWAY, FROM_UPLINK, FROM_TUNNEL):
        yield L3_FORWARDING.flow(MISS, ip(family), origin, CT_SERVICE).then(
            SNAT.set(),
            *out_of_gateway(node),
            why="a Service's endpoint or client outside of the Pod network: the host knows the way",
        )
    if not routes_answers:
        yield from by_the_bridge(node, family)


def by_the_bridge(node: LocalNode, family: Family) -> Iterator[Flow]:
    """A host that answers by its routes alone: `host_endpoint_answers` picks its answers out on their way there."""
    for address in node.own_addresses(family):
        yield L3_FORWARDING.flow(HIGH, FROM_UPLINK, CT_SERVICE, CT_MASQUERADE.unset, destination(address)).then(
            Output(LOCAL_PORT), why="from outside to an endpoint on this host, by policy Local: the client stays"
        )
    yield CONNTRACK_STATE.flow(TOP + 1, FROM_HOST_ENDPOINT, ip(family)).then(
        Output(node.ports.uplink), why="the host talks to the network; if for a Service, it is translated by now"
    )


def translations(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Clients of Services that an endpoint must see as somebody else, so that its answers come back here."""
    gateway, as_node, virtual = node.gateway(family), node.addresses[family].ip, VIRTUAL_CLIENT[family]
    # L3Forwarding sets one of these at most. The matches say so, too: of one priority no two may fit a packet.
    outside, on_host, itself = SNAT, (SNAT.unset, *SNAT_VIRTUAL), (SNAT.unset, SNAT_VIRTUAL.unset, *HAIRPIN)
    cases: tuple[tuple[int, Condition, IPAddress, tuple[int, int], str], ...] = (
        (TOP, outside, as_node, SERVICE_SNAT_PORTS, "an endpoint outside sees the Node"),
        (TOP, on_host, virtual, VIRTUAL_SNAT_PORTS, "an endpoint on this host sees the virtual client"),
        (TOP, itself, gateway, GATEWAY_SNAT_PORTS, "a Pod that is its own endpoint sees the gateway"),
        (HIGH, CT_MASQUERADE, gateway, GATEWAY_SNAT_PORTS, "policy Cluster: the endpoint sees the gateway"),
    )
    table = L2_FORWARDING_OUT.number
    for tracking, (priority, condition, seen_as, ports, why) in product(sctp.trackings(node), cases):
        when: tuple[Condition, ...] = (tracking.packets(family), CT_SERVICE, condition)
        nat = Nat(seen_as, ports=ports if tracking.with_ports else None)
        commit = Ct(tracking.snat_zone, table, commit=True, nat=nat)
        yield CONNTRACK_COMMIT.flow(priority + tracking.above, *when, NEW).then(commit, why=why)
        yield CONNTRACK_COMMIT.flow(priority + tracking.above, *when, ESTABLISHED_ORIGINAL).then(
            Ct(tracking.snat_zone, table, nat=Nat()), why=why
        )
    if family is Family.IPV6 and datapath_of(node).damages_icmpv6_errors:
        for priority, condition, seen_as, _, why in cases:
            error = (*icmp(family), RELATED_ORIGINAL, *CT_SERVICE)
            yield CONNTRACK_COMMIT.flow(priority + 1, error, condition).then(
                Set(source(seen_as)[1]),  # which it gets anyway: so there is nothing left to adjust for
                Ct(SNAT_ZONE, table, nat=Nat()),
                why=f"ICMPv6 error about an answer: {why}",
            )


# --- what one Service asks for --------------------------------------------------------------------------------------


def service_flows(node: LocalNode, service: Service) -> Iterator[Flow]:
    for port in _served(node, service):
        for frontend in port.frontends:
            if frontend.address is None or not frontend.address.is_loopback:  # nobody but the host itself asks there
                yield from enters(service, port, frontend)
                yield from serves(node, service, port, frontend)
                yield from fragments(node, service, port, frontend)
            if frontend.reach is Reach.EXTERNAL and frontend.address is not None:
                # Where it is an address of the host's own: the host's connections, and those by its other NICs.
                own = replace(frontend, address=stand_in(frontend.address))
                yield from serves(node, service, port, own, stands_for=frontend.address)
        if port.affinity_seconds:
            yield from remembers(node, service, port)
    yield from fragments_enter(node, service)
    yield from host_endpoint_answers(node, service)
    for address in service.cluster_ips:
        if family_of(address) in node.families:
            yield SERVICE_LB.flow(LOW, destination(address)).then(
                goto(SERVICE_REJECT), why=f"Service {service.key} has no such port"
            )


def service_groups(node: LocalNode, service: Service) -> Iterator[Group]:
    for port in _served(node, service):
        for endpoints, local in _choices(port):
            yield from _groups(node, service, port, endpoints, local=local)


def enters(service: Service, port: ServicePort, frontend: Frontend) -> Iterator[Flow]:
    """From the wire: only packets for Services that are reached from outside leave the host's way."""
    ports = destination_port(port.family, port.protocol, frontend.port)
    match frontend.reach:
        case Reach.NODE_PORT:
            yield NODE_PORT_FILTER.flow(NORMAL, ports).then(goto(UN_SNAT), why=f"a NodePort of Service {service.key}")
        case Reach.EXTERNAL if frontend.address is not None:
            yield UPLINK.flow(NORMAL, destination(frontend.address), ports).then(
                goto(UN_SNAT), why=f"an external address of Service {service.key}"
            )


def fragments_enter(node: LocalNode, service: Service) -> Iterator[Flow]:
    """To external addresses; those to the Node's own are looked up anyway. Services that share one ask for one flow."""
    frontends = (frontend for port in _served(node, service) for frontend in port.frontends)
    external = (f.address for f in frontends if f.reach is Reach.EXTERNAL and f.address is not None)
    for address in dict.fromkeys(external):
        if address != node.addresses[family_of(address)].ip:
            yield UPLINK.flow(NORMAL, destination(address), ANY_FRAGMENT).then(
                goto(UN_SNAT), why="fragment to an external address of Services: look up its connection"
            )


def serves(
    node: LocalNode, service: Service, port: ServicePort, frontend: Frontend, stands_for: IPAddress | None = None
) -> Iterator[Flow]:
    """`stands_for`: the host's own address, of which the frontend has the stand-in; it asks itself by that one, too."""
    at = TO_NODE if frontend.address is None else destination(frontend.address)
    addressed = (*at, *destination_port(port.family, port.protocol, frontend.port))
    if frontend.sources is None:
        yield from _balanced(node, service, port, frontend, addressed, (), from_node=True)
        return
    for allowed in frontend.sources:
        yield from _balanced(node, service, port, frontend, addressed, source(allowed), from_node=False)
    not_allowed = f"Service {service.key}: not in loadBalancerSourceRanges"
    itself = {node.addresses[port.family].ip, stands_for} - {None}
    if any(address in allowed for allowed in frontend.sources for address in itself):
        yield from _from_node(node, service, port, addressed)
    else:  # also where a range has the gateway, whose address the Node itself comes with
        yield SERVICE_LB.flow(HIGH, addressed, _node_itself(node, port.family)).drop(why=not_allowed)
    yield SERVICE_LB.flow(LOW + 1, addressed).drop(why=not_allowed)


def fragments(node: LocalNode, service: Service, port: ServicePort, frontend: Frontend) -> Iterator[Flow]:
    """Of a datagram in fragments a flow sees no port. A ClusterIP with but one UDP port needs none.

    Connection tracking waits for all fragments and then does with them what it was asked to with the last to come: it
    is no matter that the group may have led them to different endpoints. But it tells datagrams apart by the pass that
    they are in, too: so it must be one flow for all of them.
    """
    if datapath_of(node).reassembles or port.protocol is not Protocol.UDP or frontend.reach is not Reach.CLUSTER_IP:
        return
    endpoints = port.local_endpoints if frontend.local_only else port.endpoints
    alone = sum(other.protocol is Protocol.UDP and other.family is port.family for other in service.ports) == 1
    if frontend.address is None or not endpoints or not alone:
        return
    # Of IPv6 only the first fragment is known to be of UDP, but others hardly ever begin with one.
    transport = protocol(port.family, port.protocol) if port.family is Family.IPV4 else ()
    to_address = (*destination(frontend.address), *transport, ANY_FRAGMENT)
    count = _group_count(endpoints) if port.affinity_seconds else 1
    for number in range(count):
        share = affinity.share(port.family, number, count - 1) if count > 1 else ()
        yield SERVICE_LB.flow(LOW + 1, to_address, share).then(
            *_to_group(port, number, local=frontend.local_only), why=f"to Service {service.key}, in fragments"
        )


def remembers(node: LocalNode, service: Service, port: ServicePort) -> Iterator[Flow]:
    for endpoints, local in _choices(port):
        count = _group_count(endpoints)
        for number in range(count if endpoints else 0):
            choice = affinity.numbered(endpoints[number::count])
            translations = {key: (endpoint, _translate(node, port, endpoint)) for key, endpoint in choice.items()}
            group, other = (group_id(port, number, local=one) for one in (local, not local))
            why = f"Service {service.key}"
            yield from affinity.flows(port.family, group, other, translations, port.affinity_seconds, why)


def host_endpoint_answers(node: LocalNode, service: Service) -> Iterator[Flow]:
    """By policy Local a client from outside is not translated: what the host answers is looked up on its way out.

    Unless the host knows by itself that its answer is to go back to the switch.
    """
    if datapath_of(node).routes_answers:
        return
    answering: dict[tuple[Family, Protocol, int], None] = {}  # each once: ports of a Service may share an endpoint
    for port in _served(node, service):
        if any(frontend.local_only and frontend.reach is not Reach.CLUSTER_IP for frontend in port.frontends):
            node_ip = node.addresses[port.family].ip
            own = (endpoint.port for endpoint in port.local_endpoints if endpoint.address == node_ip)
            answering.update(dict.fromkeys((port.family, port.protocol, number) for number in own))
    for family, transport, number in answering:
        answered = (*source(node.addresses[family].ip), *source_port(family, transport, number))
        yield CLASSIFIER.flow(HIGH, IN_PORT(LOCAL_PORT), answered).then(
            FROM_HOST_ENDPOINT.set(), goto(UN_SNAT), why=f"an endpoint of Service {service.key} on this host answers"
        )


def _served(node: LocalNode, service: Service) -> Iterator[ServicePort]:
    """Its ports in the families and protocols of this Node."""
    datapath = datapath_of(node)
    for port in service.ports:
        if port.family in node.families and port.protocol in (*datapath.transports, *datapath.portless):
            yield port


def _balanced(
    node: LocalNode,
    service: Service,
    port: ServicePort,
    frontend: Frontend,
    addressed: tuple[Term, ...],
    origin: tuple[Term, ...],
    *,
    from_node: bool,
) -> Iterator[Flow]:
    name = f"Service {service.key}"
    if not port.anywhere:
        yield SERVICE_LB.flow(NORMAL, addressed, origin).then(goto(SERVICE_REJECT), why=f"{name} has no endpoint")
    elif not frontend.local_only:
        # A client of a NodePort or of an external address may be anywhere: the endpoint must answer by way of us.
        masquerade = () if frontend.reach is Reach.CLUSTER_IP else (MASQUERADE.set(),)
        yield from _to_groups(port, (NORMAL, addressed, origin), masquerade, local=False, why=f"to {name}")
    else:
        if frontend.reach is not Reach.CLUSTER_IP:
            # Policy Local is for clients from outside; Pods and the Node itself are served by all endpoints.
            yield from _to_groups(port, (HIGH, addressed, origin, FROM_POD), (), local=False, why=f"a Pod to {name}")
            if from_node:
                yield from _from_node(node, service, port, addressed)
        if port.local_endpoints:
            preserve = (MASQUERADE.clear(),) if frontend.reach is Reach.EXTERNAL else ()
            where = (NORMAL, addressed, origin)
            yield from _to_groups(port, where, preserve, local=True, why=f"to {name}, policy Local")
        else:
            yield SERVICE_LB.flow(NORMAL, addressed, origin).drop(why=f"{name}: policy Local, and no endpoint is here")


def _node_itself(node: LocalNode, family: Family) -> tuple[Term, ...]:
    """It comes by the gateway, with the gateway's address."""
    return (*source(node.gateway(family)), *FROM_GATEWAY)


def _from_node(node: LocalNode, service: Service, port: ServicePort, addressed: tuple[Term, ...]) -> Iterator[Flow]:
    when = (HIGH, addressed, _node_itself(node, port.family))
    if port.anywhere:
        yield from _to_groups(port, when, (), local=False, why=f"the Node itself to Service {service.key}")
    else:
        yield SERVICE_LB.flow(*when).then(goto(SERVICE_REJECT), why=f"Service {service.key} has no endpoint")


def _to_groups(
    port: ServicePort, when: tuple[int | Condition, ...], before: tuple[Action, ...], *, local: bool, why: str
) -> Iterator[Flow]:
    """To the group; with very many endpoints to one of several, by the lowest bits of the client's port."""
    priority, *conditions = when
    count = _group_count(port.local_endpoints if local else port.endpoints)
    for number in range(count):
        share: tuple[Term, ...] = ()
        if count > 1 and port.affinity_seconds:
            share = affinity.share(port.family, number, count - 1)
        elif count > 1:
            share = source_port(port.family, port.protocol, number, count - 1)
        does = (*before, *_to_group(port, number, local=local))
        yield SERVICE_LB.flow(priority, *conditions, share).then(*does, why=why)  # type: ignore[arg-type]


def _to_group(port: ServicePort, number: int, *, local: bool) -> tuple[Action, ...]:
    group, other = (group_id(port, number, local=one) for one in (local, not local))
    return affinity.ask(group, other) if port.affinity_seconds else (ToGroup(group),)


def _groups(
    node: LocalNode, service: Service, port: ServicePort, endpoints: tuple[Endpoint, ...], *, local: bool
) -> Iterator[Group]:
    count = _group_count(endpoints) if endpoints else 0
    why = f"the endpoints of Service {service.key}" + (" on this Node" if local else "")
    for number in range(count):
        group, choice = group_id(port, number, local=local), endpoints[number::count]
        if port.affinity_seconds:
            yield Group(
                group, tuple(map(affinity.bucket, affinity.numbered(choice))), why, affinity.CLIENT[port.family]
            )
        elif port.protocol in datapath_of(node).portless:
            does = (_translate(node, port, endpoint) for endpoint in choice)
            yield Group(group, tuple(Bucket(index, (translate,)) for index, translate in enumerate(does)), why)
        else:
            yield Group(group, Translations(_TO_ENDPOINT, choice), why)


def _choices(port: ServicePort) -> Iterator[tuple[tuple[Endpoint, ...], bool]]:
    """The endpoints that a frontend chooses among, and whether they are those on this Node."""
    yield port.endpoints, False
    if any(frontend.local_only for frontend in port.frontends):
        yield port.local_endpoints, True


def _translate(node: LocalNode, port: ServicePort, endpoint: Endpoint) -> Ct:
    if port.protocol in datapath_of(node).portless:
        return sctp.to_endpoint(endpoint, _MARKS)
    return replace(_TO_ENDPOINT, nat=Nat(to=endpoint.address, ports=(endpoint.port, endpoint.port)))


def _group_count(endpoints: Sequence[Endpoint]) -> int:
    """A power of two, so that bits of a port can choose."""
    count = 1
    while len(endpoints) > count * GROUP_SIZE:
        count *= 2
    return count


def group_id(port: ServicePort, number: int, *, local: bool) -> int:
    return port.group + 2 * number + local


_MARKS = (CT_SERVICE.set(), Move(SERVICE_FLAGS, CT_SERVICE_FLAGS))
_TO_ENDPOINT = Ct(POD_ZONE, L3_FORWARDING.number, commit=True, sets=_MARKS)
