"""The plan of the underlay: which machine has which NIC on which network segment. Pure; network/underlays.py builds it.

Addresses in one /24 (IPv6: /64) share a segment, and so do all addresses of one NIC. The router has the first address
of each of those subnets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_interface

from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.directives import ExternalHost
from windlass.lab.scenarios.objects import LabNode
from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of

PREFIX = {Family.IPV4: 24, Family.IPV6: 64}
UPLINK = "eth0"
SECOND = "eth1"


@dataclass(frozen=True, slots=True)
class Nic:
    name: str
    addresses: tuple[IPInterface, ...]

    @property
    def subnets(self) -> frozenset[IPNetwork]:
        return frozenset(address.network for address in self.addresses)


@dataclass(frozen=True, slots=True)
class Machine:
    """A Node or an ExternalHost, as the underlay sees it."""

    kind: str
    name: str
    nics: tuple[Nic, ...]
    link_mtu: int | None = None  # the machine has its own router; a link of this MTU connects that to the others

    @property
    def default_routers(self) -> dict[Family, IPAddress]:
        """The router on the first NIC that has the family."""
        routers: dict[Family, IPAddress] = {}
        for nic in self.nics:
            for address in nic.addresses:
                routers.setdefault(family_of(address), router_of(address.network))
        return routers


@dataclass(frozen=True, slots=True)
class Segment:
    """An Ethernet segment, and the subnets that the router has on it."""

    bridge: str
    subnets: frozenset[IPNetwork]


def machines(desired: DesiredState) -> Iterator[Machine]:
    yield from map(machine_of_node, desired.nodes.values())
    yield from map(machine_of_host, desired.hosts.values())


def machine_of_node(node: LabNode) -> Machine:
    nics = [_nic(UPLINK, node.addresses.values())]
    if node.other_addresses:
        nics.append(_nic(SECOND, node.other_addresses))
    return Machine("node", node.name, tuple(nics))


def machine_of_host(host: ExternalHost) -> Machine:
    return Machine("host", host.name, (_nic(UPLINK, host.addresses),), host.spec.mtu)


def segments(of: Iterable[Machine]) -> tuple[Segment, ...]:
    wires: list[frozenset[IPNetwork]] = []
    for machine in of:
        for nic in machine.nics if machine.link_mtu is None else ():
            joined = [wire for wire in wires if wire & nic.subnets]
            wires = [wire for wire in wires if wire not in joined] + [nic.subnets.union(*joined)]
    return tuple(Segment(f"segment{number}", wire) for number, wire in enumerate(wires))


def router_of(subnet: IPNetwork) -> IPAddress:
    return subnet.network_address + 1


def problems(desired: DesiredState) -> Iterator[str]:
    """Addresses that two machines or the router would share, and subnets that cannot be shared."""
    owners: dict[IPAddress, str] = {}
    for machine in machines(desired):
        title = f"{'Node' if machine.kind == 'node' else 'ExternalHost'} {machine.name}"
        for nic in machine.nics:
            for address in nic.addresses:
                if address.ip == router_of(address.network):
                    yield f"{title}: {address.ip} belongs to the router, which has the first address of each subnet"
                elif address.ip in owners:
                    yield f"{title}: {address.ip} is already the address of {owners[address.ip]}"
                owners[address.ip] = title
    yield from _shared_subnets(desired)


def _shared_subnets(desired: DesiredState) -> Iterator[str]:
    for host in desired.hosts.values():
        own = machine_of_host(host)
        if own.link_mtu is None:
            continue
        taken = {subnet for other in machines(desired) if other != own for nic in other.nics for subnet in nic.subnets}
        for subnet in sorted(own.nics[0].subnets & taken, key=str):
            alone = "a host with spec.mtu has its own router, so no other machine may be in"
            yield f"ExternalHost {host.name}: {alone} {subnet}"


def _nic(name: str, addresses: Iterable[IPAddress]) -> Nic:
    return Nic(name, tuple(ip_interface(f"{address}/{PREFIX[family_of(address)]}") for address in addresses))
