"""What Windlass requires of an operating system. Each host implements `Host` and passes the same contract tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from windlass.host.forwarded_clients import ForwardedClients
from windlass.host.plans import HostChange, HostNames, HostPlan, Route
from windlass.host.preflight import Facts
from windlass.model.families import IPAddress, IPInterface, IPNetwork
from windlass.model.nodes import HostConnection

OTHER_INTERFACES = "other interfaces"  # the name by which `Host.watch` reports interfaces that were not requested


class HostError(Exception):
    """The host refused a request. The message says which one, why, and what state the host is in now."""


@contextmanager
def attempting(what: str) -> Iterator[None]:
    """Turns an OSError within the block into a HostError that says what was attempted."""
    try:
        yield
    except OSError as error:
        raise HostError(f"could not {what}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Uplink:
    """The NIC, with the addresses and routes that belong to it, even while the bridge interface holds them."""

    name: str
    index: int  # the host's number for this interface: an interface that is created again gets a new number
    mac: str
    mtu: int
    addresses: tuple[IPInterface, ...] = ()  # without link-local addresses
    routes: tuple[Route, ...] = ()  # of the main routing table, through a single next hop: the best per destination


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of moving the uplink's addresses: the bridge interface holds at least one Node IP."""

    uplink: Uplink
    problems: tuple[str, ...] = ()  # a sentence for each item that could not be moved or recorded


@dataclass(frozen=True, slots=True)
class PodDns:
    """What the runtime asks for. A host that does not configure DNS ignores it."""

    servers: tuple[str, ...] = ()
    domain: str = ""
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodLink:
    """The desired interface of a Pod and its other end on the host."""

    namespace: str  # Linux: the path of the network namespace; Windows: the ID of the HCN namespace
    interface: str  # its name in the Pod
    host_interface: str
    mac: str
    addresses: tuple[IPInterface, ...]
    gateways: tuple[IPAddress, ...]
    mtu: int  # of the Pod's routes: the longest packet that it sends
    link_mtu: int  # of the link: the longest packet that it receives
    userspace: bool  # the switch runs its userspace datapath
    dns: PodDns = field(default=PodDns(), compare=False)
    container: str = field(default="", compare=False)  # docker on Windows has no namespaces: the container to attach


@dataclass(frozen=True, slots=True)
class AttachedLink:
    """A Pod link that exists on the host."""

    host_interface: str
    interface: str
    namespace: str


class HostUplink(Protocol):
    """Moves the addresses and routes of the NIC to the bridge interface and back.

    `uplink` and `bridge` are names of interfaces, `node_ips` the InternalIPs of the Node.
    """

    async def find(
        self, bridge: str, node_ips: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Uplink:
        """The NIC called `name`; without a name, the adopted NIC or the one that holds the Node IPs.

        port: an uplink that is already a port of the bridge. It counts as adopted even without a record.
        """

    async def prepare(
        self, uplink: str, bridge: str, node_ips: Collection[IPAddress], pod_cidrs: Collection[IPNetwork]
    ) -> bool:
        """Create what the switch needs before it can create the bridge, unless it exists. Linux needs nothing.

        On Windows it is the host's own switch on the NIC, of which Open vSwitch is an extension, and the interface
        that becomes the bridge interface. After an error the Node has its addresses, or the record has them.

        Returns whether ovs-vswitchd must be told to retry: it may have failed to create the bridge before.
        """

    async def adopt(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> Adopted:
        """Move addresses, routes, MAC and MTU of the uplink to the bridge interface. May be repeated at any time: it
        completes an interrupted move, and restores what was lost together with the bridge interface.

        While only the uplink holds Node IPs, a refused step undoes the move and raises HostError. Once the bridge
        interface holds a Node IP, that address stays there, and a refused step is a problem of the result. After a
        HostError either interface may hold the addresses: ask `needs_wire`.
        """

    async def bypass(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> str:
        """Connect both interfaces past the switch, and give the bridge interface routes and a copy of the addresses.
        The Node answers now, and also when the uplink has become a port. To be called before that, on a datapath that
        keeps a port's packets from the host; then `adopt`, then `end_bypass`.

        Returns why the host cannot do so; empty if it has. HostError, and nothing is changed, if the addresses or
        routes cannot be moved.
        """

    async def end_bypass(self, uplink: str, bridge: str) -> None:
        """End the bypass, if there is one: only the switch connects both interfaces then."""

    async def needs_wire(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> bool:
        """True if the uplink holds every Node IP and the bridge interface none: the uplink must not be a port of the
        bridge then. Read from the host at each call. False if in doubt.
        """

    async def release(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        """Move everything back to the uplink, and remove the record of the move unless a later step needs it."""

    async def recorded(self, *, since_boot: bool = False) -> str | None:
        """The name of the adopted NIC, if there is a record and the NIC exists. since_boot: if it was adopted in this
        boot of the machine.
        """

    async def lend(self, uplink: str, bridge: str) -> None:
        """Copy addresses and routes to the uplink, so that the Node keeps them when the bridge interface disappears.
        `release` completes the move; the next `adopt` undoes the copy.
        """

    async def detach(self, names: HostNames) -> None:
        """Take the uplink out of a datapath that has outlived its switch daemon, and remove the bridge interface."""


class HostPods(Protocol):
    """Creates and removes the links between Pods and the switch."""

    appear_later: bool  # the host interface of a link may be created after `attach` has returned: see `appeared`

    async def attach(self, link: PodLink) -> None:
        """Create the link exactly as described. On an error no part of it remains."""

    async def appeared(self, host_interface: str, mtu: int) -> None:
        """Returns when the switch can use the host interface. `mtu`: as in the link."""

    async def detach(self, host_interface: str) -> None:
        """Remove the link, if it exists."""

    async def check(self, link: PodLink) -> tuple[str, ...]:
        """A sentence for each difference between the existing link and this one."""

    async def links(self) -> tuple[AttachedLink, ...]:
        """The existing links, ordered by the name of the host interface."""


class Host(Protocol):
    uplink: HostUplink
    pods: HostPods
    boot: str  # an ID of the current boot of the machine; empty if the host has none

    def forward_clients(self, clients: ForwardedClients) -> None:
        """Set the object that decides about clients of NodePorts whose connections this host forwards itself. Linux
        forwards none: the switch sees every client.
        """

    async def installed(self, names: HostNames) -> HostPlan:
        """What Windlass has installed: addresses of the gateway, routes, neighbours, items of Services, the settings of
        the three interfaces, and the conntrack settings that can be changed here. It contains nothing that belongs to
        other programs, so that no change ever removes theirs.
        """

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        """Apply as much as possible. Returns a sentence for each item that failed; the others are not affected."""

    async def reserve_ports(
        self, ports: Collection[tuple[int, int]], addresses: Collection[IPAddress]
    ) -> tuple[HostConnection, ...]:
        """Reserve these ports (ranges: first and last): the host opens no more connections from them, unless a program
        binds a certain port. Returns the connections that the host has opened from them, with one of `addresses`.
        Raises HostError, and reserves nothing, if the host would have too few ports left.
        """

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        """The facts that the preflight checks need, for this NIC; without a name, for the adopted or likely NIC."""

    async def held_addresses(self) -> frozenset[IPAddress]:
        """The addresses of all interfaces, without loopback and link-local addresses."""

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        """Remove all items of Windlass, and restore the host's settings. Returns a sentence for each failed step; the
        others are not affected.
        """

    def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        """Yield the names of all interfaces at once, then the names of those that have changed, whenever some have.
        OTHER_INTERFACES is among them if another interface has got or lost one of `held_addresses`. Changes that
        arrive between two reads are merged.
        """

    async def close(self) -> None:
        """Release resources of this process. Everything installed stays."""
