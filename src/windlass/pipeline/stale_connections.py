"""UDP connections that the switch tracks and should forget, because a Service is not what it was.

A tracked connection keeps its endpoint. TCP needs nothing here: its connections end with their endpoint, and while that
serves they shall stay. UDP has no end: a client that goes on from the same port would go on to an endpoint that is
gone, or past a Service that came later.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint, Protocol, Reach, Service
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.layout import POD_ZONE, stand_in
from windlass.pipeline.services import node_port_addresses

# So many endpoints of a frontend are told apart from those that go on serving; beyond, all its connections begin anew:
# for each message the switch looks through all connections that it has.
ENDPOINTS_APART = 8

Door = tuple[Family, IPAddress | None, int]  # None: at the Node's own addresses


def stale(before: Service | None, after: Service | None, node: LocalNode) -> list[Flush]:
    """What to forget when the switch has `after` instead of `before`; None: there was, or is, no such Service."""
    old, new = _serving(before), _serving(after)
    found: dict[Flush, None] = {}
    for door in old.keys() | new.keys():
        found |= dict.fromkeys(_of_door(door, old.get(door), new.get(door), node))
    return list(found)


def has_udp(service: Service | None) -> bool:
    return service is not None and any(port.protocol is Protocol.UDP for port in service.ports)


def _serving(service: Service | None) -> dict[Door, frozenset[Endpoint]]:
    """By frontend: the endpoints with which its connections may stay."""
    found: dict[Door, frozenset[Endpoint]] = {}
    for port in service.ports if service else ():
        if port.protocol is Protocol.UDP:
            serving = frozenset(port.serving)
            for frontend in port.frontends:
                found[port.family, frontend.address, frontend.port] = serving
                if frontend.reach is Reach.EXTERNAL and frontend.address is not None:
                    # If it is the host's own, the host asks by this one.
                    found[port.family, stand_in(frontend.address), frontend.port] = serving
    return found


def _of_door(
    door: Door, old: frozenset[Endpoint] | None, new: frozenset[Endpoint] | None, node: LocalNode
) -> Iterator[Flush]:
    family, address, number = door
    if family not in node.families:
        return
    addresses = tuple(node_port_addresses(node, family)) if address is None else (address,)
    if old is None:  # what was sent there before there was a Service, and so untranslated
        yield from (Flush(POD_ZONE, Protocol.UDP, at, number, at, number) for at in addresses)
        return
    gone = _places(old) - _places(new or frozenset())
    if new and len(gone) <= ENDPOINTS_APART:
        for endpoint, port in gone:
            yield Flush(POD_ZONE, Protocol.UDP, address, number, endpoint, port)
    elif new is None or gone:  # not there any more, without any endpoint, or almost
        yield from (Flush(POD_ZONE, Protocol.UDP, at, number) for at in addresses)


def _places(endpoints: frozenset[Endpoint]) -> set[tuple[IPAddress, int]]:
    """Whether it is on this Node makes no difference here."""
    return {(endpoint.address, endpoint.port) for endpoint in endpoints}
