"""An interface of a Linux host with its addresses and routes, in all the detail that moving them needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windlass.host.plans import Route
from windlass.host.protocol import Uplink
from windlass.model.families import IPAddress, IPInterface, IPNetwork


@dataclass(frozen=True, slots=True)
class AdapterAddress:
    """An address with the attributes that its creator (an administrator, a DHCP client, the kernel) gave it."""

    interface: IPInterface
    valid_until: int | None = None  # seconds since 1970; None: the address does not expire
    preferred_until: int | None = None  # seconds since 1970; the address is deprecated afterwards
    peer: IPAddress | None = None  # at the other end of a point-to-point link
    broadcast: IPAddress | None = None
    metric: int = 0  # the metric of the route to its network
    scope: int = 0  # rtnetlink's number
    flags: int = 0  # those IFA_F_* flags that a creator can choose

    @property
    def ip(self) -> IPAddress:
        return self.interface.ip

    @property
    def network(self) -> IPNetwork:
        return self.interface.network

    @property
    def version(self) -> int:
        return self.interface.version

    def __str__(self) -> str:
        return f"address {self.interface}"


@dataclass(frozen=True, slots=True)
class NextHop:
    """One next hop of a multipath route."""

    via: IPAddress | None = None
    interface: int = 0  # the index of another interface; 0: the interface that has the route
    weight: int = 0
    onlink: bool = False


LEARNED_METRIC = 1024
LEARNED = 9  # RTPROT_RA: `AdapterRoute.protocol` of a route that a router advertised


@dataclass(frozen=True, slots=True)
class AdapterRoute:
    """A route through the interface, with the attributes that its creator gave it."""

    destination: IPNetwork
    via: IPAddress | None = None
    source: IPAddress | None = None
    metric: int = 0
    onlink: bool = False
    table: int = 0  # 0: the main table
    protocol: int = 0  # RTPROT_*: which program created it
    options: bytes = b""  # RTA_METRICS (MTU, window), unparsed
    hops: tuple[NextHop, ...] = ()  # the next hops of a multipath route; `via` and `onlink` are unused then
    tos: int = 0
    scope: int | None = None  # rtnetlink's number; None: the one that follows from `via`
    preference: int = 0  # router preference, as advertised
    expires_at: int | None = None  # seconds since 1970

    @property
    def is_indirect(self) -> bool:
        return self.via is not None or bool(self.hops)

    @property
    def is_learned(self) -> bool:
        """The kernel learned the route from a router advertisement, or it is a copy of such a route.

        A copy for another interface gets a metric of one more: with the same metric, the kernel would take the copy
        for its own route and fail to refresh it.
        """
        metrics = (LEARNED_METRIC, LEARNED_METRIC + 1)
        return self.protocol == LEARNED and self.destination.version == 6 and self.metric in metrics

    @property
    def is_moved(self) -> bool:
        """The route is a copy of a learned route."""
        return self.is_learned and self.metric == LEARNED_METRIC + 1

    @property
    def moved(self) -> AdapterRoute:
        """The route as it is copied to another interface."""
        return replace(self, metric=LEARNED_METRIC + 1) if self.is_learned else self

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"route {self.destination}{via}"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An interface with its addresses and routes, without those that the kernel creates (link-local, connected)."""

    name: str
    index: int  # an interface that is created again gets a new index
    mac: str
    mtu: int
    addresses: tuple[AdapterAddress, ...] = ()
    routes: tuple[AdapterRoute, ...] = ()

    @property
    def uplink(self) -> Uplink:
        """The part that does not depend on the operating system."""
        best: dict[IPNetwork, AdapterRoute] = {}
        for route in sorted(self.routes, key=lambda route: route.metric):
            if not route.table and not route.hops:
                best.setdefault(route.destination, route)
        return Uplink(
            self.name,
            self.index,
            self.mac,
            self.mtu,
            tuple(address.interface for address in self.addresses),
            tuple(Route(r.destination, self.name, r.via, r.onlink, r.source) for r in best.values()),
        )
