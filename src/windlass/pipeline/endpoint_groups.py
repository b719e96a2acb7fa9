"""Groups of endpoints: a Service port has one group for each traffic policy, and a bucket commits a new connection to
its endpoint. So no flow is needed per endpoint, and none for the packets that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint, ServedPort, ServedService
from windlass.openflow.actions import Action, Ct, Move, Nat, ToGroup
from windlass.openflow.conditions import source_bits, source_port
from windlass.openflow.fields import Term
from windlass.openflow.flows import Bucket, Flow, Group, Translations
from windlass.openflow.matches import Condition
from windlass.pipeline import affinity, sctp
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.layout import SERVICE_LB
from windlass.pipeline.tracking import CT_SERVICE, CT_SERVICE_FLAGS, POD_ZONE, SERVICE_FLAGS

GROUP_SIZE = 500  # a dump of a group must fit into 64 KiB, or ovs-vswitchd crashes; a bucket takes up to 120 bytes


def service_groups(node: LocalNode, service: ServedService) -> Iterator[Group]:
    for port in served_ports(node, service):
        for endpoints, local in _choices(port):
            yield from _groups(node, service, port, endpoints, local=local)


def to_groups(
    port: ServedPort,
    priority: int,
    conditions: tuple[Condition, ...],
    before: tuple[Action, ...],
    *,
    local: bool,
    why: str,
) -> Iterator[Flow]:
    """Flows to the group; with very many endpoints to one of several, by the lowest bits of the client's port."""
    count = group_count(port.local_endpoints if local else port.endpoints)
    for number in range(count):
        share: tuple[Term, ...] = ()
        if count > 1 and port.affinity_seconds:
            # By the address, so that a client always gets the same group.
            share = source_bits(port.family, number, count - 1)
        elif count > 1:
            share = source_port(port.family, port.protocol, number, count - 1)
        does = (*before, *to_group(port, number, local=local))
        yield SERVICE_LB.flow(priority, *conditions, share).then(*does, why=why)


def to_group(port: ServedPort, number: int, *, local: bool) -> tuple[Action, ...]:
    group, other = (_group_id(port, number, local=one) for one in (local, not local))
    return affinity.look_up(group, other) if port.affinity_seconds else (ToGroup(group),)


def affinity_flows(node: LocalNode, service: ServedService, port: ServedPort) -> Iterator[Flow]:
    for endpoints, local in _choices(port):
        count = group_count(endpoints)
        for number in range(count if endpoints else 0):
            choice = affinity.numbered(endpoints[number::count])
            translations = {key: (endpoint, _translate(node, port, endpoint)) for key, endpoint in choice.items()}
            group, other = (_group_id(port, number, local=one) for one in (local, not local))
            why = f"to Service {service.key}"
            yield from affinity.flows(port.family, group, other, translations, port.affinity_seconds, why)


def served_ports(node: LocalNode, service: ServedService) -> list[ServedPort]:
    """The ports of the Service in the families and protocols that this Node supports."""
    families, datapath = node.families, datapath_of(node)
    protocols = datapath.transports + datapath.portless
    return [port for port in service.ports if port.family in families and port.protocol in protocols]


def group_count(endpoints: Sequence[Endpoint]) -> int:
    """How many groups hold these endpoints: a power of two, so that bits of a port can choose among them."""
    count = 1
    while len(endpoints) > count * GROUP_SIZE:
        count *= 2
    return count


def _groups(
    node: LocalNode, service: ServedService, port: ServedPort, endpoints: tuple[Endpoint, ...], *, local: bool
) -> Iterator[Group]:
    count = group_count(endpoints) if endpoints else 0
    why = f"the endpoints of Service {service.key}" + (" on this Node" if local else "")
    for number in range(count):
        group, choice = _group_id(port, number, local=local), endpoints[number::count]
        if port.affinity_seconds:
            yield Group(
                group, tuple(map(affinity.bucket, affinity.numbered(choice))), why, affinity.CLIENT[port.family]
            )
        elif port.protocol in datapath_of(node).portless:
            does = (_translate(node, port, endpoint) for endpoint in choice)
            yield Group(group, tuple(Bucket(index, (translate,)) for index, translate in enumerate(does)), why)
        else:
            yield Group(group, Translations(_TO_ENDPOINT, choice), why)


def _choices(port: ServedPort) -> Iterator[tuple[tuple[Endpoint, ...], bool]]:
    """The endpoints of each group, and whether they are only those on this Node (policy Local)."""
    yield port.endpoints, False
    if any(frontend.local_only for frontend in port.frontends):
        yield port.local_endpoints, True


def _translate(node: LocalNode, port: ServedPort, endpoint: Endpoint) -> Ct:
    if port.protocol in datapath_of(node).portless:
        return sctp.to_endpoint(endpoint, _MARKS)
    return replace(_TO_ENDPOINT, nat=Nat(to=endpoint.address, ports=(endpoint.port, endpoint.port)))


def _group_id(port: ServedPort, number: int, *, local: bool) -> int:
    return port.group + 2 * number + local


_MARKS = (CT_SERVICE.set(), Move(SERVICE_FLAGS, CT_SERVICE_FLAGS))
_TO_ENDPOINT = Ct(POD_ZONE, SERVICE_LB.onward, commit=True, sets=_MARKS)
