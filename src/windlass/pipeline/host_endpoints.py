"""Endpoints of Services that are not Pods: on this host, or outside of the Pod network.

A host that cannot route replies back to the switch (Windows) sends them out by its bridge interface. There, Classifier
finds the replies of its endpoints (`reply_flows`).
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.model.services import Protocol, Reach, ServedService
from windlass.openflow.actions import Output
from windlass.openflow.conditions import destination, ip, source, source_port
from windlass.openflow.fields import IN_PORT, LOCAL_PORT
from windlass.openflow.flows import Flow
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.endpoint_groups import served_ports
from windlass.pipeline.layout import CLASSIFIER, CONNTRACK_STAGE, CONNTRACK_STATE, L3_FORWARDING
from windlass.pipeline.packet_marks import (
    FROM_GATEWAY,
    FROM_HOST_ENDPOINT,
    FROM_POD,
    FROM_TUNNEL,
    FROM_UPLINK,
    SNAT,
    SNAT_VIRTUAL,
)
from windlass.pipeline.priorities import DEFAULT, HIGH, TOP
from windlass.pipeline.routing import out_of_gateway
from windlass.pipeline.tracking import CT_MASQUERADE, CT_SERVICE


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from to_host(node, family)
        yield from to_outside(node, family)
        if not datapath_of(node).routes_replies:
            yield from by_the_bridge(node, family)


def to_host(node: LocalNode, family: Family) -> Iterator[Flow]:
    # A client behind another NIC keeps its address if the host can route the reply back to the switch.
    itself = source(node.gateway(family)) if datapath_of(node).routes_replies else ()
    for address in node.own_addresses(family):
        to_address = destination(address)
        yield L3_FORWARDING.flow(HIGH, FROM_GATEWAY, CT_SERVICE, CT_MASQUERADE.unset, itself, to_address).then(
            SNAT_VIRTUAL.set(),
            *out_of_gateway(node),
            why="Service connection from the host to its own endpoint: send it back as the virtual client",
        )
        for origin in (FROM_GATEWAY, FROM_UPLINK, FROM_POD):
            # Not as the gateway, which is the host's own address: the host would reply to itself.
            yield L3_FORWARDING.flow(HIGH, origin, CT_SERVICE, CT_MASQUERADE, to_address).then(
                SNAT_VIRTUAL.set(),
                *out_of_gateway(node),
                why="Service connection, policy Cluster, to an endpoint on this host: send it as the virtual client",
            )


def to_outside(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(DEFAULT, ip(family), FROM_UPLINK, CT_SERVICE.unset).then(
        Output(LOCAL_PORT), why="from the wire, for no Pod and no Service: deliver to the host"
    )
    for origin in (FROM_GATEWAY, FROM_UPLINK, FROM_TUNNEL):
        yield L3_FORWARDING.flow(DEFAULT, ip(family), origin, CT_SERVICE).then(
            SNAT.set(),
            *out_of_gateway(node),
            why="Service connection with an endpoint or client outside of the Pod network: the host routes it",
        )


def by_the_bridge(node: LocalNode, family: Family) -> Iterator[Flow]:
    """For a host that cannot route replies back to the switch; `reply_flows` finds its replies."""
    for address in node.own_addresses(family):
        yield L3_FORWARDING.flow(HIGH, FROM_UPLINK, CT_SERVICE, CT_MASQUERADE.unset, destination(address)).then(
            Output(LOCAL_PORT),
            why="Service connection from outside, policy Local, to an endpoint on this host: deliver it untranslated",
        )
    yield CONNTRACK_STATE.flow(TOP + 1, FROM_HOST_ENDPOINT, ip(family)).then(
        Output(node.ports.uplink),
        why="from the host to the network, translated if it is a reply of a Service: send it to the wire",
    )


def reply_flows(node: LocalNode, service: ServedService) -> Iterator[Flow]:
    """Clients from outside are not translated with policy Local, so replies of the host are looked up when they leave,
    unless the host routes them back to the switch.
    """
    if datapath_of(node).routes_replies:
        return
    serving: dict[tuple[Family, Protocol, int], None] = {}  # without repetition
    for port in served_ports(node, service):
        if any(frontend.local_only and frontend.reach is not Reach.CLUSTER_IP for frontend in port.frontends):
            node_ip = node.addresses[port.family].ip
            own = (endpoint.port for endpoint in port.local_endpoints if endpoint.address == node_ip)
            serving.update(dict.fromkeys((port.family, port.protocol, number) for number in own))
    for family, transport, number in serving:
        replies = (*source(node.addresses[family].ip), *source_port(family, transport, number))
        yield CLASSIFIER.flow(HIGH, IN_PORT(LOCAL_PORT), replies).then(
            FROM_HOST_ENDPOINT.set(),
            goto(CONNTRACK_STAGE),
            why=f"from the port of an endpoint of Service {service.key} on this host: look up whether it is a reply",
        )
