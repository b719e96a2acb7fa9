"""UDP conntrack entries that must be deleted because their Service changed.

A tracked connection keeps its endpoint. TCP needs nothing here: its connections end with their endpoint, and stay while
the endpoint serves. UDP has no end: a client that keeps sending from the same port would still reach an endpoint that
is gone, or bypass a Service that came later.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint, Protocol, Reach, ServedService
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.frontends import node_port_addresses
from windlass.pipeline.reserved import stand_in
from windlass.pipeline.tracking import POD_ZONE

# If a frontend loses more endpoints than this at once, all its connections are deleted with one message, because the
# switch scans all its connections for each message.
ENDPOINTS_APART = 8

FrontendKey = tuple[Family, IPAddress | None, int]  # None: at the Node's own addresses


def stale(before: ServedService | None, after: ServedService | None, node: LocalNode) -> list[Flush]:
    """What to delete once the switch has `after` instead of `before`; None: there was, or is, no such Service."""
    if not datapath_of(node).flushes:
        return []
    old, new = _serving(before), _serving(after)
    found: dict[Flush, None] = {}
    for key in old.keys() | new.keys():
        found |= dict.fromkeys(_of_frontend(key, old.get(key), new.get(key), node))
    return list(found)


def has_udp(service: ServedService | None) -> bool:
    return service is not None and any(port.protocol is Protocol.UDP for port in service.ports)


def _serving(service: ServedService | None) -> dict[FrontendKey, frozenset[Endpoint]]:
    """The endpoints whose connections may stay, by frontend."""
    found: dict[FrontendKey, frozenset[Endpoint]] = {}
    for port in service.ports if service else ():
        if port.protocol is Protocol.UDP:
            serving = frozenset(port.serving)
            for frontend in port.frontends:
                found[port.family, frontend.address, frontend.port] = serving
                if frontend.reach is Reach.EXTERNAL and frontend.address is not None:
                    # The host connects to the stand-in, if this is an address of the host itself.
                    found[port.family, stand_in(frontend.address), frontend.port] = serving
    return found


def _of_frontend(
    key: FrontendKey, old: frozenset[Endpoint] | None, new: frozenset[Endpoint] | None, node: LocalNode
) -> Iterator[Flush]:
    family, address, number = key
    if family not in node.families:
        return
    addresses = tuple(node_port_addresses(node, family)) if address is None else (address,)
    if old is None:  # connections from before the Service existed, which are not translated
        yield from (Flush(POD_ZONE, Protocol.UDP, at, number, at, number) for at in addresses)
        return
    gone = _addresses(old) - _addresses(new or frozenset())
    if new and len(gone) <= ENDPOINTS_APART:
        for endpoint, port in gone:
            yield Flush(POD_ZONE, Protocol.UDP, address, number, endpoint, port)
    elif new is None or gone:  # the frontend is gone, or lost all or very many endpoints
        yield from (Flush(POD_ZONE, Protocol.UDP, at, number) for at in addresses)


def _addresses(endpoints: frozenset[Endpoint]) -> set[tuple[IPAddress, int]]:
    """The endpoints without the flag that says whether an endpoint is on this Node."""
    return {(endpoint.address, endpoint.port) for endpoint in endpoints}
