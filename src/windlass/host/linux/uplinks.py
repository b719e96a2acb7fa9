"""Adopting the uplink and giving it back, by the steps of `migrations`: reading, doing, and undoing what failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path

from windlass.host import migrations
from windlass.host.linux import ingress, records, rtnetlink
from windlass.host.linux.netlink import Netlink, told
from windlass.host.migrations import Add, Record, Remove, Step
from windlass.host.protocol import Adapter, HostError, UplinkRoute
from windlass.model.families import IPAddress

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def find(
    netlink: Netlink, record_file: Path, bridge: str, node_ips: Collection[IPAddress], name: str | None
) -> Adapter:
    record = records.load(record_file)
    wanted = ", ".join(map(str, node_ips))
    if name is None:
        holders = _holders(netlink, node_ips) - {bridge}
        if len(holders) > 1:
            raise HostError(f"the Node IPs {wanted} are on several interfaces: name one as the uplink")
        name = holders.pop() if holders else None
    if name is None and record is not None and record.bridge == bridge:
        name = record.uplink.name
    if name is None:
        raise HostError(
            f"no interface but perhaps {bridge} has the Node IP {wanted}, and {record_file} does not say which one "
            "had it: name the uplink in the configuration"
        )
    uplink = _adapter(netlink, name)
    if uplink is None:
        raise HostError(f"there is no interface {name} that could be the uplink")
    return migrations.uplink_with_all(record, uplink, _adapter(netlink, bridge), _boot(), node_ips)


def adopt(
    netlink: Netlink, record_file: Path, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]
) -> Adapter:
    uplink, bridge = _adapter(netlink, uplink_name), _adapter(netlink, bridge_name)
    if uplink is None or bridge is None:
        missing = uplink_name if uplink is None else bridge_name
        raise HostError(f"there is no interface {missing}: {uplink_name} was left as it is")
    _refuse_what_cannot_move(netlink, uplink)
    stored = records.load(record_file)
    goal = migrations.uplink_with_all(stored, uplink, bridge, _boot(), node_ips)
    unknown = [str(ip) for ip in node_ips if ip not in {address.ip for address in goal.addresses}]
    if unknown:
        raise HostError(
            f"neither {uplink_name} nor {bridge_name} nor the record {record_file} has the Node IP "
            f"{', '.join(unknown)}: {uplink_name} was left as it is"
        )

    record = Record(goal, bridge_name, _boot())
    if stored is None or replace(stored, settled_on=None) != record:
        records.save(record_file, record)
    try:
        _make_like(netlink, bridge_name, uplink)
        for step in migrations.steps(goal, source=uplink, target=bridge):
            _do(netlink, step)
    except (HostError, OSError) as error:
        _undo(netlink, record_file, goal, bridge_name, error)
        raise HostError(f"{error}: {uplink_name} has its addresses back") from error
    settled = replace(record, settled_on=bridge.index)
    if stored != settled:
        records.save(record_file, settled)
    return goal


def release(netlink: Netlink, record_file: Path, uplink_name: str, bridge_name: str) -> None:
    uplink, bridge = _adapter(netlink, uplink_name), _adapter(netlink, bridge_name)
    if uplink is None:
        raise HostError(f"there is no interface {uplink_name}: {record_file} keeps what it had")
    goal = migrations.uplink_with_all(records.load(record_file), uplink, bridge, _boot())
    _give_back(netlink, goal, bridge)
    records.forget(record_file)


def _undo(netlink: Netlink, record_file: Path, goal: Adapter, bridge_name: str, error: Exception) -> None:
    try:
        _give_back(netlink, goal, _adapter(netlink, bridge_name))
    except (HostError, OSError) as second:
        raise HostError(f"{error}; and putting it back: {second}; {record_file} has what {goal.name} had") from error
    records.forget(record_file)


def _give_back(netlink: Netlink, goal: Adapter, bridge: Adapter | None) -> None:
    """As much of it as can be: what the kernel refuses is told in the end."""
    uplink = _adapter(netlink, goal.name)
    if uplink is None:
        raise HostError(f"there is no interface {goal.name}")
    with told(f"bring {goal.name} up"):
        rtnetlink.set_link(netlink, uplink.index, up=True)
        ingress.open_again(netlink, uplink.index)
    problems = []
    for step in migrations.steps(goal, source=bridge, target=uplink):
        try:
            _do(netlink, step)
        except HostError as error:
            problems.append(str(error))
    if problems:
        raise HostError("; ".join(problems))


def _make_like(netlink: Netlink, bridge_name: str, uplink: Adapter) -> None:
    bridge = rtnetlink.link(netlink, bridge_name)
    if bridge is None:
        raise HostError(f"{bridge_name} has vanished")
    if bridge.mac != uplink.mac:
        with told(f"set the MAC of {bridge_name} to {uplink.mac}"):
            rtnetlink.set_link(netlink, bridge.index, mac=uplink.mac)
    if bridge.mtu != uplink.mtu:
        with told(f"set the MTU of {bridge_name} to {uplink.mtu}"):
            rtnetlink.set_link(netlink, bridge.index, mtu=uplink.mtu)
    if not bridge.up:
        with told(f"bring {bridge_name} up"):
            rtnetlink.set_link(netlink, bridge.index, up=True)


def _do(netlink: Netlink, step: Step) -> None:
    with told(str(step)):
        match step:
            case Add(to, UplinkRoute() as route):
                rtnetlink.add_route(netlink, to.index, route, instead=True)
            case Add(to, IPv4Interface() | IPv6Interface() as address):
                rtnetlink.add_address(netlink, to.index, address)
            case Remove(by, UplinkRoute() as route):
                rtnetlink.delete_route(netlink, by.index, route)
            case Remove(by, IPv4Interface() | IPv6Interface() as address):
                rtnetlink.delete_address(netlink, by.index, address)


def _adapter(netlink: Netlink, name: str) -> Adapter | None:
    link = rtnetlink.link(netlink, name)
    if link is None:
        return None
    routes = tuple(
        found.route
        for found in rtnetlink.routes(netlink, index=link.index)
        if found.plain and not found.kernel_made and found.route.protocol != rtnetlink.PROTOCOL
    )
    addresses = [address for _, address in rtnetlink.addresses(netlink, link.index)]
    # In the order in which they would have to be added: for IPv6 the kernel puts the newest first.
    ipv4 = [address for address in addresses if address.version == 4]
    ipv6 = [address for address in reversed(addresses) if address.version == 6]
    return Adapter(name, link.index, link.mac, link.mtu, (*ipv4, *ipv6), routes)


def _holders(netlink: Netlink, node_ips: Collection[IPAddress]) -> set[str]:
    indexes = {index for index, address in rtnetlink.addresses(netlink) if address.ip in node_ips}
    return {link.name for link in (rtnetlink.link(netlink, index) for index in indexes) if link is not None}


def _refuse_what_cannot_move(netlink: Netlink, uplink: Adapter) -> None:
    for found in rtnetlink.routes(netlink, index=uplink.index):
        if not found.plain:
            raise HostError(
                f"{found.route.destination} is routed by {uplink.name} through several next hops, or one of the other "
                f"family, which cannot be moved: give it one route for each next hop; {uplink.name} was left as it is"
            )


def _boot() -> str:
    return _BOOT.read_text().strip()
