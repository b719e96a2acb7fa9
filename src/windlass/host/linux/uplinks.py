"""Moves addresses and routes of the uplink to the bridge interface and back, by the steps of `migrations`."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from windlass.host import uplink_choices
from windlass.host.linux import (
    adapters,
    advertisements,
    bypasses,
    canaries,
    ingress,
    leases,
    migrations,
    moves,
    records,
    rtnetlink,
    settings,
)
from windlass.host.linux.adapter_state import Adapter, AdapterAddress
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.migrations import AddItem, MovableItem, MoveStep, UplinkRecord
from windlass.host.linux.netlink import Netlink, ignoring
from windlass.host.linux.records import RecordFile
from windlass.host.protocol import Adopted, HostError, attempting
from windlass.model.families import Family, IPAddress


def find(
    netlink: Netlink,
    file: RecordFile,
    bridge: str,
    node_ips: Collection[IPAddress],
    name: str | None,
    port: str | None = None,
) -> Adapter:
    record = file.load()
    if name is None:
        recorded = record.uplink.name if record is not None and record.bridge == bridge else None
        adopted = adapters.read(netlink, bridge)
        name = uplink_choices.chosen_uplink(
            bridge,
            node_ips,
            adapters.holders(netlink, node_ips),
            recorded or port,
            file,
            is_adopted=adopted is not None and adapters.has_any(adopted, node_ips),
        )
    uplink = adapters.read(netlink, name)
    if uplink is None:
        raise HostError(f"there is no interface {name}, which should be the uplink")
    return _with_all(netlink, record, uplink, adapters.read(netlink, bridge), node_ips)


def adopt(
    netlink: Netlink, file: RecordFile, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]
) -> Adopted:
    adoption = _adoption(netlink, file, uplink_name, bridge_name, node_ips)
    return adoption.move_all_or_nothing() if adoption.is_first else adoption.move_as_much_as_possible()


def keep_later_addresses(_: Netlink, formers: FormerSettings, uplink_name: str) -> None:
    """Removing an IPv4 address from the uplink must not remove those of its network that were added since."""
    with suppress(OSError):  # such addresses are rare, and a move does not depend on them
        settings.change_sysctl(formers, Family.IPV4, uplink_name, "promote_secondaries", 1)


def bypass(
    netlink: Netlink,
    file: RecordFile,
    formers: FormerSettings,
    uplink_name: str,
    bridge_name: str,
    node_ips: Collection[IPAddress],
) -> str:
    adoption = _adoption(netlink, file, uplink_name, bridge_name, node_ips)
    uplink, bridge = adoption.uplink, adoption.bridge
    try:
        _make_like(netlink, bridge_name, uplink)
        with attempting(f"connect {bridge_name} with {uplink_name} past the switch"):
            settings.loosen_reverse_path(formers, uplink_name)
            bypasses.begin(netlink, uplink.index, bridge.index)
    except HostError as error:
        with suppress(OSError):
            bypasses.end(netlink, uplink.index, bridge.index)
        return str(error)
    adoption.prepare()
    return ""


def end_bypass(netlink: Netlink, uplink_name: str, bridge_name: str) -> None:
    uplink, bridge = rtnetlink.link(netlink, uplink_name), rtnetlink.link(netlink, bridge_name)
    if uplink is not None:
        with attempting(f"end the connection of {bridge_name} with {uplink_name} past the switch"):
            bypasses.end(netlink, uplink.index, bridge.index if bridge else None)


def _adoption(
    netlink: Netlink, file: RecordFile, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]
) -> _Adoption:
    uplink, bridge = uplink_choices.both_interfaces(uplink_name, bridge_name, partial(adapters.read, netlink))
    stored = file.load()
    goal = _with_all(netlink, stored, uplink, bridge, node_ips)
    known = (address.ip for address in goal.addresses)
    uplink_choices.require_known(uplink_name, bridge_name, known, node_ips, file)
    return _Adoption(netlink, file, stored, goal, uplink, bridge, node_ips)


def needs_wire(netlink: Netlink, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]) -> bool:
    uplink, bridge = adapters.read(netlink, uplink_name), adapters.read(netlink, bridge_name)
    on_bridge = bridge is not None and adapters.has_any(bridge, node_ips)
    return uplink is not None and adapters.has_all(uplink, node_ips) and not on_bridge


@dataclass(frozen=True, slots=True)
class _Adoption:
    """One attempt to move the addresses and routes of `goal` from the uplink to the bridge interface."""

    netlink: Netlink
    file: RecordFile
    stored: UplinkRecord | None
    goal: Adapter
    uplink: Adapter
    bridge: Adapter
    node_ips: Collection[IPAddress]

    @property
    def is_first(self) -> bool:
        return adapters.has_all(self.uplink, self.node_ips) and not adapters.has_any(self.bridge, self.node_ips)

    def move_all_or_nothing(self) -> Adopted:
        """The Node still works through its NIC: if a step is refused, all steps are undone."""
        self._do_all_or_nothing(self._steps())
        return Adopted(self.goal.uplink, tuple(self._settle(self.goal)))

    def prepare(self) -> None:
        """Give the addresses to both interfaces, and the routes to the bridge interface. `move_as_much_as_possible`
        completes the move and reports what is refused, unless this is the first adoption.
        """
        arrivals = migrations.arrivals(self._lasting_goal(), source=self.uplink, target=self.bridge)
        if self.is_first:
            self._do_all_or_nothing(arrivals, then=self._demote)
        else:
            self._keep(self._record())
            moves.carry_out_possible(self.netlink, arrivals)
            self._demote()

    def _do_all_or_nothing(self, steps: Iterable[MoveStep], then: Callable[[], None] = lambda: None) -> None:
        for problem in adapters.not_movable(self.netlink, self.uplink):
            raise HostError(f"{problem}; {self.uplink.name} was not changed")
        self._save(self._record())
        try:
            self._make_like()
            for step in steps:
                moves.carry_out(self.netlink, step)
            then()
        except (HostError, OSError) as error:
            _undo(self.netlink, self.file, self.goal, self.bridge.name, error)
            raise HostError(f"{error}: the addresses are back on {self.uplink.name}") from error

    def _demote(self) -> None:
        """Make the host reach the networks of the addresses by the bridge interface."""
        with attempting(f"set the metric of the addresses of {self.uplink.name}"):
            leases.demote(self.netlink, self.uplink.index)

    def move_as_much_as_possible(self) -> Adopted:
        """The bridge interface holds or held a Node IP: a refused item stays where it is, and the others are moved. If
        the bridge interface ends up without any Node IP, everything goes back to the uplink.
        """
        problems = [*adapters.not_movable(self.netlink, self.uplink), *self._keep(self._record())]
        try:
            self._make_like()
        except HostError as error:
            problems.append(str(error))
        refused = moves.carry_out_possible(self.netlink, self._steps())
        problems += refused.values()
        if any(isinstance(item, AdapterAddress) for item in refused):
            # The kernel may receive no replies on the uplink, so neighbours must be reached by the bridge interface.
            with suppress(HostError):
                self._demote()
        now = adapters.read(self.netlink, self.bridge.name)
        if now is None or not adapters.has_any(now, self.node_ips):
            cause = HostError("; ".join(problems) or f"{self.bridge.name} has disappeared")
            _undo(self.netlink, self.file, self.goal, self.bridge.name, cause)
            raise HostError(f"{cause}: the addresses are back on {self.uplink.name}")
        if self._are_on_uplink(refused):  # otherwise keep the record: an item may be in it only
            problems += self._settle(_without(self.goal, refused))
        return Adopted(self.goal.uplink, tuple(dict.fromkeys(problems)))

    def _steps(self) -> Iterator[MoveStep]:
        replaced = migrations.replaced_leases(self.uplink, self.bridge, self.node_ips)
        return migrations.steps(self._lasting_goal(), source=self.uplink, target=self.bridge, replaced=replaced)

    def _lasting_goal(self) -> Adapter:
        return migrations.lasting(self.goal, self.node_ips)

    def _make_like(self) -> None:
        _make_like(self.netlink, self.bridge.name, self.uplink)
        if Family.IPV6 not in canaries.alive(self.netlink, self.bridge.index):
            learns = any(route.is_learned for route in self.goal.routes)
            advertisements.listen_like(self.bridge.name, self.uplink.name, learns=learns)

    def _are_on_uplink(self, items: Iterable[MovableItem]) -> bool:
        uplink = adapters.read(self.netlink, self.uplink.name)
        held: list[MovableItem] = [] if uplink is None else [*uplink.addresses, *uplink.routes]
        return {migrations.key(item) for item in items} <= {migrations.key(item) for item in held}

    def _record(self) -> UplinkRecord:
        return UplinkRecord(self.goal, self.bridge.name, records.boot())

    def _settle(self, moved: Adapter) -> list[str]:
        canaries.place(self.netlink, self.bridge.index)
        return self._keep(replace(self._record(), uplink=moved, settled_on=self.bridge.index))

    def _keep(self, record: UplinkRecord) -> list[str]:
        """Save the record, or remember it until it can be saved. Returns the problem."""
        try:
            self._save(record)
        except HostError as error:
            self.file.unwritten = record
            return [f"{error}; new items of {self.uplink.name} would be lost together with {self.bridge.name}"]
        return []

    def _save(self, record: UplinkRecord) -> None:
        """Does nothing if the file already contains the same record."""
        if self.file.unwritten or not _is_recorded(self.stored, record):
            self.file.write(record)


def release(
    netlink: Netlink, file: RecordFile, uplink_name: str, bridge_name: str, *, keep_record: bool = False
) -> None:
    _, bridge, goal = _before_giving_back(netlink, file, uplink_name, bridge_name)
    _give_back(netlink, goal, bridge)
    if not keep_record:
        file.remove()


def recorded(netlink: Netlink, file: RecordFile, *, since_boot: bool = False) -> str | None:
    """The adopted NIC of the record, if it exists."""
    record = file.load()
    if record is None or (since_boot and record.boot != records.boot()):
        return None
    return record.uplink.name if rtnetlink.link(netlink, record.uplink.name) else None


def lend(netlink: Netlink, file: RecordFile, uplink_name: str, bridge_name: str) -> None:
    """Add everything to the NIC as well, so that the Node keeps its addresses if either interface disappears.

    The routes by the NIC have a higher metric and the protocol of Windlass: `clean` and the next adoption remove them.
    """
    uplink, _, goal = _before_giving_back(netlink, file, uplink_name, bridge_name)
    with attempting(f"bring {uplink_name} up"):
        rtnetlink.set_link(netlink, uplink.index, up=True)
    held = {address.ip for address in uplink.addresses}
    for address in goal.addresses:
        if address.ip not in held:
            moves.carry_out(netlink, AddItem(uplink, address))
    for route in sorted(goal.routes, key=lambda route: route.via is not None):
        if route not in uplink.routes:
            beside = replace(route, metric=route.metric + 1, protocol=rtnetlink.PROTOCOL)
            with attempting(f"add {beside} to {uplink_name}"), ignoring(errno.EEXIST):
                rtnetlink.add_route(netlink, uplink.index, beside)
    with attempting(f"remove the ingress filter of {uplink_name}"):
        ingress.open_again(netlink, uplink.index)


def _before_giving_back(
    netlink: Netlink, file: RecordFile, uplink_name: str, bridge_name: str
) -> tuple[Adapter, Adapter | None, Adapter]:
    """The NIC and the bridge as they are, and the NIC with everything that it must get back."""
    uplink, bridge = adapters.read(netlink, uplink_name), adapters.read(netlink, bridge_name)
    if uplink is None:
        raise HostError(f"there is no interface {uplink_name}; its addresses and routes stay recorded in {file}")
    return uplink, bridge, _with_all(netlink, file.load(), uplink, bridge, ())


def _with_all(
    netlink: Netlink,
    record: UplinkRecord | None,
    uplink: Adapter,
    bridge: Adapter | None,
    node_ips: Collection[IPAddress],
) -> Adapter:
    intact = canaries.alive(netlink, bridge.index) if bridge is not None else frozenset()
    now = int(time.time())
    return migrations.uplink_with_all(record, uplink, bridge, records.boot(), node_ips, intact=intact, now=now)


def _undo(netlink: Netlink, file: RecordFile, goal: Adapter, bridge_name: str, error: Exception) -> None:
    try:
        _give_back(netlink, goal, adapters.read(netlink, bridge_name))
    except (HostError, OSError) as second:
        raise HostError(
            f"{error}; undoing it also failed: {second}; the addresses and routes of {goal.name} are in {file}"
        ) from error
    file.remove()


def _give_back(netlink: Netlink, goal: Adapter, bridge: Adapter | None) -> None:
    """Move back as much as possible. Raises HostError with all refused steps at the end."""
    uplink = adapters.read(netlink, goal.name)
    if uplink is None:
        raise HostError(f"there is no interface {goal.name}")
    with attempting(f"bring {goal.name} up"):
        rtnetlink.set_link(netlink, uplink.index, up=True)
        ingress.open_again(netlink, uplink.index)
        leases.promote(netlink, uplink.index)
    if bridge is not None:
        canaries.remove(netlink, bridge.index)
    problems = []
    for step in migrations.steps(goal, source=bridge, target=uplink):
        try:
            moves.carry_out(netlink, step)
        except HostError as error:
            problems.append(str(error))
    if problems:
        raise HostError("; ".join(problems))
    end_bypass(netlink, goal.name, bridge.name if bridge else "")


def _make_like(netlink: Netlink, bridge_name: str, uplink: Adapter) -> None:
    bridge = rtnetlink.link(netlink, bridge_name)
    if bridge is None:
        raise HostError(f"{bridge_name} has disappeared")
    if bridge.mac != uplink.mac:
        with attempting(f"set the MAC of {bridge_name} to {uplink.mac}"):
            rtnetlink.set_link(netlink, bridge.index, mac=uplink.mac)
    if bridge.mtu != uplink.mtu:
        with attempting(f"set the MTU of {bridge_name} to {uplink.mtu}"):
            rtnetlink.set_link(netlink, bridge.index, mtu=uplink.mtu)
    # Removing an IPv4 address must not remove the other addresses of its network.
    if not settings.sysctl(Family.IPV4, bridge_name, "promote_secondaries"):
        with attempting(f"set promote_secondaries of {bridge_name}"):
            settings.set_sysctl(Family.IPV4, bridge_name, "promote_secondaries", 1)
    if not bridge.up:
        with attempting(f"bring {bridge_name} up"):
            rtnetlink.set_link(netlink, bridge.index, up=True)


def _without(adapter: Adapter, items: Collection[MovableItem]) -> Adapter:
    keys = {migrations.key(item) for item in items}
    return replace(
        adapter,
        addresses=tuple(address for address in adapter.addresses if migrations.key(address) not in keys),
        routes=tuple(route for route in adapter.routes if migrations.key(route) not in keys),
    )


def _is_recorded(stored: UplinkRecord | None, record: UplinkRecord) -> bool:
    """The stored record is equal, apart from lifetimes that only count down."""
    if stored is None or (record.settled_on is not None and stored.settled_on != record.settled_on):
        return False
    same_place = (stored.bridge, stored.boot) == (record.bridge, record.boot)
    return same_place and migrations.alike(stored.uplink, record.uplink)
