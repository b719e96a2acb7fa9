"""What Windlass asks of an operating system. Each host implements `Host`, and passes the same contract tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from windlass.host.plans import HostChange, HostNames, HostPlan
from windlass.host.preflight import Facts
from windlass.model.families import IPAddress, IPInterface, IPNetwork

OTHER_INTERFACES = "other interfaces"  # the name that `watch` gives to those it was not asked for


class HostError(Exception):
    """The host could not do it. The message says what, where, and what is the case now."""


@dataclass(frozen=True, slots=True)
class UplinkAddress:
    """An address of the uplink, kept as its maker (a person, a DHCP client, the kernel) made it."""

    interface: IPInterface
    valid_until: int | None = None  # in seconds since 1970; None: it does not expire
    preferred_until: int | None = None  # likewise; after that it is deprecated
    peer: IPAddress | None = None  # at the other end of a point-to-point link
    broadcast: IPAddress | None = None
    metric: int = 0  # of the route to its network
    scope: int = 0  # as the host numbers them
    flags: int = 0  # those of the host's that are a choice of its maker

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
    """One of several of a route."""

    via: IPAddress | None = None
    interface: int = 0  # the host's number of another interface; 0: the uplink
    weight: int = 0
    onlink: bool = False


LEARNED_METRIC = 1024
LEARNED = 9  # `UplinkRoute.protocol` of what a router advertised (Linux: RTPROT_RA)


@dataclass(frozen=True, slots=True)
class UplinkRoute:
    """A route by the uplink that somebody else made, kept as they made it."""

    destination: IPNetwork
    via: IPAddress | None = None
    source: IPAddress | None = None
    metric: int = 0
    onlink: bool = False
    table: int = 0  # 0: the host's main table
    protocol: int = 0  # who made it, as the host numbers them
    options: bytes = b""  # further settings of the route (MTU, window) in the host's own form
    hops: tuple[NextHop, ...] = ()  # where there are several; `via` and `onlink` are theirs then
    tos: int = 0
    scope: int | None = None  # as the host numbers them; None: by `via`
    preference: int = 0  # of a router, as it advertises it
    expires_at: int | None = None  # in seconds since 1970

    @property
    def is_indirect(self) -> bool:
        return self.via is not None or bool(self.hops)

    @property
    def is_learned(self) -> bool:
        """A router advertises it, and the interface that hears it learns it by itself.

        A copy must not have the metric of what is learned: the kernel would take it for its own, and fail to refresh
        it. So a copy is a little worse, until it expires.
        """
        metrics = (LEARNED_METRIC, LEARNED_METRIC + 1)
        return self.protocol == LEARNED and self.destination.version == 6 and self.metric in metrics

    @property
    def is_moved(self) -> bool:
        """Is it such a copy?"""
        return self.is_learned and self.metric == LEARNED_METRIC + 1

    @property
    def moved(self) -> UplinkRoute:
        """The copy for another interface."""
        return replace(self, metric=LEARNED_METRIC + 1) if self.is_learned else self

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"route {self.destination}{via}"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An interface of the host with what it holds; without what the host makes by itself (link-local, connected)."""

    name: str
    index: int  # the host's number for this very interface: one that is made again has another
    mac: str
    mtu: int
    addresses: tuple[UplinkAddress, ...] = ()
    routes: tuple[UplinkRoute, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopted:
    """The bridge interface holds the Node IPs, or those that the host lets it hold."""

    uplink: Adapter  # with everything that belongs to it, wherever it is
    problems: tuple[str, ...] = ()  # what stayed on the uplink, or was not recorded: a sentence each


@dataclass(frozen=True, slots=True)
class PodLink:
    """A Pod's interface and its other end on the host, as asked for."""

    namespace: str  # the path of the Pod's network namespace (Windows: its HCN id)
    interface: str  # its name in the Pod
    host_interface: str
    mac: str
    addresses: tuple[IPInterface, ...]
    gateways: tuple[IPAddress, ...]
    mtu: int
    userspace: bool  # the switch runs its userspace datapath


@dataclass(frozen=True, slots=True)
class AttachedLink:
    """A Pod link as it is found on the host."""

    host_interface: str
    interface: str
    namespace: str


class Host(Protocol):
    @property
    def boot(self) -> str:
        """Identifies this run of the machine: another one after a reboot. Empty where the host cannot say."""

    async def installed(self, names: HostNames) -> HostPlan:
        """What there is of ours: addresses of the gateway, our routes and neighbours, what Services asked for, settings
        of the three interfaces, and those settings of connection tracking that can be changed here. What others have
        set up is not in it, and so never in a change.
        """

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        """Do all that can be done; each problem is a sentence about one item, and does not stop the others."""

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        """What `preflight` judges, about this NIC; without a name, about the one that was taken or probably will be."""

    async def held_addresses(self) -> frozenset[IPAddress]:
        """The addresses of all interfaces by which others may know the host: no loopback or link-local ones."""

    async def find_uplink(
        self, bridge: str, addresses: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Adapter:
        """The NIC of that name, or else the one that was adopted, or holds these Node IPs; with what the bridge
        interface holds for it, once it is adopted. `port` is a port of the bridge already: it was adopted, even if no
        record says so.
        """

    async def adopt_uplink(self, uplink: str, bridge: str, addresses: Collection[IPAddress]) -> Adopted:
        """Move addresses, routes, MAC and MTU of the uplink to the bridge interface, whatever the state before: never
        moved, moved, half moved, or lost with the bridge interface.

        While the Node IPs (`addresses`) are on the uplink alone, a refused step undoes the move and is a HostError.
        Once they are on the bridge interface they stay there, and what cannot be moved is a problem. After a
        HostError the addresses may be on either interface: ask `needs_wire`.
        """

    async def needs_wire(self, uplink: str, bridge: str, addresses: Collection[IPAddress]) -> bool:
        """True if the uplink itself holds every Node IP, and the bridge interface none: then the uplink must not be
        a port of the bridge. Read from the host each time. In doubt False.
        """

    async def release_uplink(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        """The uplink has its addresses and routes back, wherever they were. The record of them is removed, unless more
        is to be done for which it is needed.
        """

    async def recorded_uplink(self) -> str | None:
        """The name of the NIC that was adopted and is there, if any."""

    async def lend_uplink(self, uplink: str, bridge: str) -> None:
        """The uplink holds its addresses and routes beside the bridge interface, so that the Node keeps them when that
        interface goes. Then `release_uplink` completes it; the next `adopt_uplink` undoes it.
        """

    async def detach_uplink(self, names: HostNames) -> None:
        """Take the uplink out of a datapath that goes on without its switch daemon, and remove the bridge interface."""

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        """Remove what is ours from the host, and restore its settings. Each problem is a sentence about one item, and
        does not stop the others.
        """

    async def attach_pod(self, link: PodLink) -> None:
        """The link is there, exactly so. After an error there is none."""

    async def detach_pod(self, host_interface: str) -> None:
        """The link is gone; so be it if it was gone already."""

    async def check_pod(self, link: PodLink) -> tuple[str, ...]:
        """How what is there differs from this link; one sentence for each difference."""

    async def pod_links(self) -> tuple[AttachedLink, ...]:
        """Those there are, in order of the host's interface names."""

    def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        """Yields at once, and then whenever something of these interfaces has changed: which of them, by name. Also
        when another interface got or lost one of `held_addresses`: then `OTHER_INTERFACES` is among the names. Changes
        that come faster than they are taken are taken together.
        """

    async def close(self) -> None:
        """Nothing is undone: what was set up stays."""
