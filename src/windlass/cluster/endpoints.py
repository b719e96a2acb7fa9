"""Selects the endpoints that one Node uses from EndpointSlices, by their conditions and topology hints. Pure.

trafficDistribution needs no code here: the EndpointSlice controller turns it into hints.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from msgspec import Struct

from windlass.cluster.addresses import complaint, read_addresses
from windlass.cluster.objects import HEADLESS_LABEL, EndpointConditions, EndpointHints, EndpointSlice, Node, Problem
from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.nodes import OperatingSystem
from windlass.model.services import Endpoint, Protocol

ZONE_LABEL = "topology.kubernetes.io/zone"
ANY_PORT = range(1, 65536)
NODE_PORTS = range(30000, 32768)  # the default of the API server's --service-node-port-range
FAMILIES: Mapping[str, Family] = {str(family): family for family in Family}
PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in Protocol}

# The rank of an endpoint. If two slices have the same endpoint, the greater rank counts, so that local wins.
UNUSABLE, SERVING, DRAINING, READY = range(4)  # draining: terminating, but still serving
LOCAL = 4  # added to the rank of an endpoint on this Node
_NOT_SERVING = (UNUSABLE, UNUSABLE | LOCAL)


@dataclass(frozen=True, slots=True)
class ServingNode:
    """What the Services of a Node depend on besides the Services themselves. A change recomputes all of them."""

    name: str
    zone: str  # empty if the Node has none
    families: tuple[Family, ...]
    os: OperatingSystem = OperatingSystem.LINUX
    pod_cidrs: Mapping[Family, IPNetwork] = field(default_factory=dict)
    node_ports: range = NODE_PORTS
    addresses: tuple[IPAddress, ...] = ()  # the addresses in the Node object
    tunnel_port: int = 0  # the UDP port of the tunnel on every Node; 0: there is no tunnel


def zone_of(node: Node) -> str:
    return (node.metadata.labels or {}).get(ZONE_LABEL, "")


PortKey = tuple[str, str, str]  # addressType, port name, protocol
EndpointRow = tuple[bytes, int, int, EndpointHints | None]  # address, port, rank, hints
_address_port_rank = itemgetter(0, 1, 2)


class Usable(Struct, frozen=True, gc=False):
    """The endpoints of one port in one family, sorted by address and port: the order does not depend on slices."""

    cluster: tuple[Endpoint, ...] = ()  # for policy Cluster, after hints; empty: no endpoint anywhere is usable
    serving: tuple[Endpoint, ...] = ()  # existing connections to these may stay
    local: tuple[Endpoint, ...] = ()  # for policy Local
    ready_local: tuple[Endpoint, ...] = ()  # what the health check port reports


_NOTHING = Usable()


def rows_by_port(
    slices: Iterable[EndpointSlice], families: Container[str], node: ServingNode
) -> tuple[dict[PortKey, list[EndpointRow]], list[Problem]]:
    """The endpoints in all slices of a Service, by the port that they serve."""
    found: dict[PortKey, list[EndpointRow]] = {}
    problems: list[Problem] = []
    for one in slices:
        if one.metadata.labels and HEADLESS_LABEL in one.metadata.labels:
            continue
        kind = one.address_type or ""
        if kind not in families:
            if kind not in FAMILIES and kind != "FQDN":
                problems.append(
                    Problem.of(one, f"addressType: {kind!r} is not one of IPv4, IPv6, FQDN; it is left out")
                )
            continue
        read: list[EndpointRow] | None = None
        for name, protocol, number in _ports(one, problems):
            if read is None:
                read = _read(one, number, node.name, problems)
            else:
                read = [(packed, number, rank, hints) for packed, _, rank, hints in read]
            key = kind, name, protocol
            if key in found:
                found[key].extend(read)
            else:
                found[key] = read
    return found, problems


def usable(rows: list[EndpointRow], node: ServingNode, *, local: bool = True) -> Usable:
    """The ready endpoints, or the draining ones if none is ready. Local endpoints are selected independently."""
    if not rows:
        return _NOTHING
    every = _each_once(rows)
    ready = _with(every, READY, READY | LOCAL)
    chosen = _nearest(ready, node) if ready else _with(every, DRAINING, DRAINING | LOCAL)
    cluster = _endpoints(chosen)
    serving = cluster if len(chosen) == len(every) else _endpoints(row for row in every if row[2] not in _NOT_SERVING)
    if not local:
        return Usable(cluster, serving)
    ready_local = _with(every, READY | LOCAL)
    return Usable(cluster, serving, _endpoints(ready_local or _with(every, DRAINING | LOCAL)), _endpoints(ready_local))


def _each_once(rows: list[EndpointRow]) -> list[EndpointRow]:
    """Sorted by address and port. Of several rows of one endpoint, the one with the highest rank."""
    if len({row[0] for row in rows}) == len(rows):  # the usual case: sorting compares addresses only
        return sorted(rows)
    return list({(row[0], row[1]): row for row in sorted(rows, key=_address_port_rank)}.values())


def _nearest(ready: list[EndpointRow], node: ServingNode) -> list[EndpointRow]:
    """The endpoints hinted for this Node, else for its zone; all of them unless every endpoint has such hints."""
    hints = [hints for *_, hints in ready if hints] if ready[0][3] else []
    if len(hints) < len(ready):
        return ready
    for names, own in (
        ([{hint.name for hint in one.for_nodes or ()} for one in hints], node.name),
        ([{hint.name for hint in one.for_zones or ()} for one in hints], node.zone),
    ):
        if all(names) and any(own in one for one in names):
            return [row for row, one in zip(ready, names, strict=True) if own in one]
    return ready


def _with(rows: list[EndpointRow], *ranks: int) -> list[EndpointRow]:
    return [row for row in rows if row[2] in ranks]


def _endpoints(rows: Iterable[EndpointRow]) -> tuple[Endpoint, ...]:
    return tuple([Endpoint(packed, number, rank >= LOCAL) for packed, number, rank, _ in rows])


def _read(one: EndpointSlice, number: int, node: str, problems: list[Problem]) -> list[EndpointRow]:
    """The first address of each endpoint: by definition, the others are the same endpoint."""
    entries = one.endpoints or ()
    texts = [entry.addresses[0] if entry.addresses else "" for entry in entries]
    packed, bad = read_addresses(texts, FAMILIES[one.address_type or ""])
    if bad:  # one problem for all of them: there may be thousands
        what = complaint(texts[bad[0]], one.address_type) if texts[bad[0]] else "is empty"
        more = f" (and {len(bad) - 1} more like it)" if len(bad) > 1 else ""
        problems.append(Problem.of(one, f"endpoints[{bad[0]}].addresses: {what}{more}; the other endpoints are used"))
        without = set(bad)
        entries = tuple(entry for index, entry in enumerate(entries) if index not in without)
    return [
        (address, number, _rank(entry.conditions) | (LOCAL if entry.node_name == node else 0), entry.hints)
        for address, entry in zip(packed, entries, strict=True)
    ]


def _rank(conditions: EndpointConditions | None) -> int:
    """An unknown condition counts as ready, as serving, and as not terminating."""
    if conditions is None or conditions.ready is not False:
        return READY
    if conditions.serving is False:
        return UNUSABLE
    return DRAINING if conditions.terminating else SERVING


def _ports(one: EndpointSlice, problems: list[Problem]) -> Iterator[tuple[str, str, int]]:
    for index, port in enumerate(one.ports or ()):
        protocol = port.protocol or "TCP"
        if not port.port:
            continue  # means all ports, for consumers other than Services
        if port.port not in ANY_PORT:
            sentence = f"ports[{index}].port: {port.port} is outside 1-65535"
        elif protocol not in PROTOCOLS:
            sentence = f"ports[{index}].protocol: {protocol!r} is not one of {', '.join(PROTOCOLS)}"
        else:
            yield port.name or "", protocol, port.port
            continue
        problems.append(Problem.of(one, f"{sentence}; its other ports are used"))
