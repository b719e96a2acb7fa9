"""Adopting the uplink and giving it back, by the steps of `migrations`: reading, doing, and undoing what failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path

from windlass.host import migrations
from windlass.host.linux import ingress, records, rtnetlink
from windlass.host.linux.netlink import Netlink, told
from windlass.host.migrations import Add, Item, Record, Remove, Step
from windlass.host.protocol import Adapter, Adopted, HostError, UplinkRoute
from windlass.model.families import IPAddress

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def find(
    netlink: Netlink,
    record_file: Path,
    bridge: str,
    node_ips: Collection[IPAddress],
    name: str | None,
    port: str | None = None,
) -> Adapter:
    record = records.load(record_file)
    if name is None:
        recorded = record.uplink.name if record is not None and record.bridge == bridge else None
        name = _adopted(netlink, bridge, node_ips, recorded or port)
    if name is None:
        name = _only_holder(netlink, record_file, bridge, node_ips)
    uplink = _adapter(netlink, name)
    if uplink is None:
        raise HostError(f"there is no interface {name} that could be the uplink")
    return migrations.uplink_with_all(record, uplink, _adapter(netlink, bridge), boot(), node_ips)


def _adopted(netlink: Netlink, bridge_name: str, node_ips: Collection[IPAddress], remembered: str | None) -> str | None:
    """The adopted NIC stays the uplink, even if another interface is given a copy of a Node IP."""
    bridge = _adapter(netlink, bridge_name)
    holders = _holders(netlink, node_ips) - {bridge_name}
    is_adopted = bridge is not None and _has_any(bridge, node_ips)
    return remembered if is_adopted or not holders or remembered in holders else None


def _only_holder(netlink: Netlink, record_file: Path, bridge: str, node_ips: Collection[IPAddress]) -> str:
    holders = _holders(netlink, node_ips) - {bridge}
    wanted = ", ".join(map(str, node_ips))
    if len(holders) > 1:
        raise HostError(f"the Node IPs {wanted} are on several interfaces: name one as the uplink")
    if not holders:
        raise HostError(
            f"no interface but perhaps {bridge} has the Node IP {wanted}, and {record_file} does not say which one "
            "had it: name the uplink in the configuration"
        )
    return holders.pop()


def adopt(
    netlink: Netlink, record_file: Path, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]
) -> Adopted:
    uplink, bridge = _adapter(netlink, uplink_name), _adapter(netlink, bridge_name)
    if uplink is None or bridge is None:
        missing = uplink_name if uplink is None else bridge_name
        raise HostError(f"there is no interface {missing}: {uplink_name} was left as it is")
    stored = records.load(record_file)
    goal = migrations.uplink_with_all(stored, uplink, bridge, boot(), node_ips)
    unknown = [str(ip) for ip in node_ips if ip not in {address.ip for address in goal.addresses}]
    if unknown:
        raise HostError(
            f"neither {uplink_name} nor {bridge_name} nor the record {record_file} has the Node IP "
            f"{', '.join(unknown)}: {uplink_name} was left as it is"
        )
    adoption = _Adoption(netlink, record_file, stored, goal, uplink, bridge)
    if _has_all(uplink, node_ips) and not _has_any(bridge, node_ips):
        return adoption.move_all_or_nothing()
    return adoption.move_what_can_be(node_ips)


def needs_wire(netlink: Netlink, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]) -> bool:
    uplink, bridge = _adapter(netlink, uplink_name), _adapter(netlink, bridge_name)
    on_bridge = bridge is not None and _has_any(bridge, node_ips)
    return uplink is not None and _has_all(uplink, node_ips) and not on_bridge


@dataclass(frozen=True, slots=True)
class _Adoption:
    """One attempt to move what `goal` has from the uplink to the bridge interface."""

    netlink: Netlink
    record_file: Path
    stored: Record | None
    goal: Adapter
    uplink: Adapter
    bridge: Adapter

    def move_all_or_nothing(self) -> Adopted:
        """The Node still works by its NIC: a step that is refused is undone with all others, and loses nothing."""
        _refuse_what_cannot_move(self.netlink, self.uplink)
        self._save(self._record())
        try:
            _make_like(self.netlink, self.bridge.name, self.uplink)
            for step in self._steps():
                _do(self.netlink, step)
        except (HostError, OSError) as error:
            _undo(self.netlink, self.record_file, self.goal, self.bridge.name, error)
            raise HostError(f"{error}: {self.uplink.name} has its addresses back") from error
        return Adopted(self.goal, tuple(self._settle(self.goal)))

    def move_what_can_be(self, node_ips: Collection[IPAddress]) -> Adopted:
        """Node IPs are on the bridge interface, or were there: what is refused stays where it is, and does not stop
        the rest. Only if the bridge interface ends up with no Node IP at all, everything goes back to the uplink.
        """
        problems = [*_not_movable(self.netlink, self.uplink)]
        is_recorded = True
        try:
            self._save(self._record())
        except HostError as error:
            is_recorded = False
            problems.append(
                f"{error}; what is new on {self.uplink.name} is used, but would not survive {self.bridge.name}"
            )
        try:
            _make_like(self.netlink, self.bridge.name, self.uplink)
        except HostError as error:
            problems.append(str(error))
        refused = _do_all(self.netlink, self._steps())
        problems += refused.values()
        now = _adapter(self.netlink, self.bridge.name)
        if now is None or not _has_any(now, node_ips):
            cause = HostError("; ".join(problems) or f"{self.bridge.name} has vanished")
            _undo(self.netlink, self.record_file, self.goal, self.bridge.name, cause)
            raise HostError(f"{cause}: {self.uplink.name} has its addresses back")
        left = _adapter(self.netlink, self.uplink.name)
        on_uplink = {*left.addresses, *left.routes} if left is not None else set()
        if refused.keys() <= on_uplink:  # what is refused and nowhere is only in the record: it is tried again
            problems += self._settle(_without(self.goal, refused)) if is_recorded else ()
        return Adopted(self.goal, tuple(problems))

    def _steps(self) -> Iterator[Step]:
        return migrations.steps(self.goal, source=self.uplink, target=self.bridge)

    def _record(self) -> Record:
        return Record(self.goal, self.bridge.name, boot())

    def _settle(self, moved: Adapter) -> list[str]:
        try:
            self._save(replace(self._record(), uplink=moved, settled_on=self.bridge.index))
        except HostError as error:
            return [str(error)]
        return []

    def _save(self, record: Record) -> None:
        """Unless the file has it already, settled or not."""
        stored = self.stored
        if record.settled_on is None and stored is not None:
            stored = replace(stored, settled_on=None)
        if stored != record:
            with told(f"write the record {self.record_file}"):
                records.save(self.record_file, record)


def release(netlink: Netlink, record_file: Path, uplink_name: str, bridge_name: str) -> None:
    uplink, bridge = _adapter(netlink, uplink_name), _adapter(netlink, bridge_name)
    if uplink is None:
        raise HostError(f"there is no interface {uplink_name}: {record_file} keeps what it had")
    goal = migrations.uplink_with_all(records.load(record_file), uplink, bridge, boot())
    _give_back(netlink, goal, bridge)
    _forget(record_file)


def _undo(netlink: Netlink, record_file: Path, goal: Adapter, bridge_name: str, error: Exception) -> None:
    try:
        _give_back(netlink, goal, _adapter(netlink, bridge_name))
    except (HostError, OSError) as second:
        raise HostError(f"{error}; and putting it back: {second}; {record_file} has what {goal.name} had") from error
    _forget(record_file)


def _forget(record_file: Path) -> None:
    with told(f"remove the record {record_file}"):
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


def _do_all(netlink: Netlink, steps: Iterable[Step]) -> dict[Item, str]:
    """What was refused, and why. An item that the target refuses stays with its source, or goes back there."""
    refused: dict[Item, str] = {}
    removed: dict[Item, Remove] = {}
    for step in steps:
        if isinstance(step, Remove) and step.item in refused:
            continue
        try:
            _do(netlink, step)
        except HostError as error:
            refused[step.item] = str(error)
            if step.item in removed:
                with suppress(HostError):
                    _do(netlink, Add(removed[step.item].by, step.item))
        else:
            if isinstance(step, Remove):
                removed[step.item] = step
    return refused


def _without(adapter: Adapter, items: Collection[Item]) -> Adapter:
    return replace(
        adapter,
        addresses=tuple(address for address in adapter.addresses if address not in items),
        routes=tuple(route for route in adapter.routes if route not in items),
    )


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
    for problem in _not_movable(netlink, uplink):
        raise HostError(f"{problem}; {uplink.name} was left as it is")


def _not_movable(netlink: Netlink, uplink: Adapter) -> Iterator[str]:
    for found in rtnetlink.routes(netlink, index=uplink.index):
        if not found.plain:
            yield (
                f"{found.route.destination} is routed by {uplink.name} through several next hops, or one of the other "
                "family, which cannot be moved: give it one route for each next hop"
            )


def _has_all(adapter: Adapter, node_ips: Collection[IPAddress]) -> bool:
    return set(node_ips) <= {address.ip for address in adapter.addresses}


def _has_any(adapter: Adapter, node_ips: Collection[IPAddress]) -> bool:
    return not {address.ip for address in adapter.addresses}.isdisjoint(node_ips)


def boot() -> str:
    return _BOOT.read_text().strip()
