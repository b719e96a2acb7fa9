"""The Node's bridge with its gateway, tunnel and uplink: how it differs from a BridgeSpec, and making it so.

Pods' ports are in `pod_ports`. Ports that somebody else put on the bridge are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from windlass.model.families import IPAddress
from windlass.model.nodes import Ports, TunnelType
from windlass.switch import ovsdb
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.rows import (
    Bridge,
    Interface,
    OpenVSwitch,
    Operation,
    Port,
    Reference,
    Value,
    View,
    count,
    insert,
    link,
    new_ref,
    put_keys,
    ref,
    unlink,
    update,
)
from windlass.switch.streams import SwitchUnreachableError

BOOT: Final = "windlass-boot"  # of an uplink: the run of the machine in which it was made a port
INDEX: Final = "windlass-ifindex"  # of an uplink: the host's number of the NIC that was made a port
ROLE: Final = "windlass-role"  # the key in an Interface's external_ids by which we know our own ports


class Role(Enum):
    LOCAL = "local"
    GATEWAY = "gateway"
    TUNNEL = "tunnel"
    UPLINK = "uplink"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class TunnelSpec:
    type: TunnelType
    name: str = "windlass-tun0"
    local_ip: IPAddress | None = None  # Windows cannot do without
    checksum: bool = False  # of the outer UDP

    @property
    def options(self) -> dict[str, str]:
        options = {"remote_ip": "flow", "key": "flow"}  # a flow sets both: one port serves every peer
        if self.local_ip is not None:
            options["local_ip"] = str(self.local_ip)
        if self.checksum:
            options["csum"] = "true"
        return options


@dataclass(frozen=True, slots=True)
class BridgeSpec:
    name: str
    datapath_type: str  # system | netdev
    hwaddr: str  # the uplink's: the bridge interface takes its place in the network
    gateway: str
    gateway_mac: str
    uplink: str
    tunnel: TunnelSpec | None  # None in noEncap
    uplink_index: int | None = None  # the host's number of that very interface
    boot: str = ""  # this run of the machine: `start-ovs-vswitchd.sh` releases the uplink in another one
    # Unless asked for, ovs-vswitchd gives internal ports the least MTU of all ports, and again with each new Pod.
    mtu: int | None = None
    gateway_mtu: int | None = None
    numbers: Ports = field(default_factory=Ports)
    # OpenFlow 1.5 is ours; 1.3 is for people, whose tools start there.
    protocols: frozenset[str] = frozenset({"OpenFlow13", "OpenFlow15"})


@dataclass(frozen=True, slots=True)
class BridgePorts:
    """OpenFlow port numbers, as ovs-vswitchd gave them."""

    local: int
    gateway: int
    tunnel: int | None


# ---- doing


async def ensure_bridge(db: Database, spec: BridgeSpec) -> BridgePorts:
    """The bridge with all but its uplink. Sends the difference only, so nothing where nothing differs."""
    await db.carried_out(await db.change(lambda view: bridge_difference(view, spec)))
    local = await port_number(db, spec.name, spec.name)
    numbers = await _requested_numbers(db, spec.name, {port.name: port.number for port in _wanted(spec) if port.number})
    return BridgePorts(local, numbers[spec.gateway], numbers[spec.tunnel.name] if spec.tunnel else None)


async def add_uplink(db: Database, spec: BridgeSpec) -> int:
    """A call of its own, because the flows must be there before the NIC is.

    After an error the port may be in the database. Whether it may stay depends on where the Node's addresses are, so
    the caller decides.
    """
    # The same name with another index is another NIC. A port that is open goes on with the one that is gone.
    await db.carried_out(await db.change(lambda view: _outdated_uplink(view, spec)))
    await db.carried_out(await db.change(lambda view: uplink_difference(view, spec)))
    return (await _requested_numbers(db, spec.name, {spec.uplink: spec.numbers.uplink}))[spec.uplink]


async def remove_uplink(db: Database, bridge: str) -> None:
    """When this returns, the NIC is the host's again."""
    await db.carried_out(await db.change(lambda view: _without(view, bridge, Role.UPLINK)))


@asynccontextmanager
async def requiring_bridge(db: Database, bridge: str) -> AsyncIterator[None]:
    """Ends the block with SwitchUnreachableError once the bridge is deleted: what it waits for would never come."""
    deleted = asyncio.create_task(db.wait_for(lambda view: bridge not in view.bridges), name=f"{bridge} is deleted")
    try:
        async with asyncio.timeout(None) as limit:

            def end(_: asyncio.Task[bool]) -> None:
                limit.reschedule(0)

            deleted.add_done_callback(end)
            try:
                yield
            finally:
                deleted.remove_done_callback(end)
    except TimeoutError:
        raise SwitchUnreachableError(f"{bridge}: the bridge was deleted; it is made again") from None
    finally:
        deleted.cancel()


async def delete_bridge(db: Database, bridge: str) -> None:
    """With all its ports, in one transaction. When this returns, the NIC is the host's again."""
    if db.view.root and bridge in db.view.bridges:
        deletion = unlink(db.view.root, "bridges", ref(db.view.bridges[bridge].uuid))
        await db.carried_out(await db.change(lambda _: [deletion]))


async def port_number(db: Database, bridge: str, interface: str) -> int:
    """Awaits what ovs-vswitchd makes of a port that stands in the database: its number, or the reason why not."""
    try:
        async with asyncio.timeout(ovsdb.PATIENCE):
            row = await db.wait_for(lambda view: _settled(view, bridge, interface))
    except TimeoutError:
        raise SwitchUnreachableError(
            db.view.problem
            or f"{bridge}: ovs-vswitchd gave port {interface} no number for {ovsdb.PATIENCE:g} s; is it running?"
        ) from None
    if row.ofport is None or row.ofport < 0:
        hint = _HINTS.get(row.external_ids.get(ROLE, ""), "see the log of ovs-vswitchd")
        raise SwitchRefusedError(f"{bridge}: port {interface}: {row.error or 'no port number'}; {hint}")
    return row.ofport


# ---- deciding


def bridge_difference(view: View, spec: BridgeSpec) -> list[Operation]:
    """What it takes to make the bridge as the spec wants it; empty if it is."""
    wanted = list(_wanted(spec))
    stale = [
        interface
        for interface in view.interfaces_of(spec.name)
        if interface.external_ids.get(ROLE) in {Role.GATEWAY.value, Role.TUNNEL.value}
        and interface.name not in {port.name for port in wanted}
    ]
    bridge = view.bridges.get(spec.name)
    operations = list(_new_bridge(view, spec) if bridge is None else _changed_bridge(bridge, spec))
    target = new_ref(_NEW_BRIDGE) if bridge is None else ref(bridge.uuid)
    for interface in stale:
        operations += remove_port(view, spec.name, interface)
    for port in wanted:
        operations += _port_difference(view, spec.name, target, port)
    return operations


def uplink_difference(view: View, spec: BridgeSpec) -> list[Operation]:
    bridge = known_bridge(view, spec.name)
    ids = {INDEX: "" if spec.uplink_index is None else str(spec.uplink_index), BOOT: spec.boot}
    uplink = _Wanted(spec.uplink, Role.UPLINK, type="", number=spec.numbers.uplink, ids=ids)
    former = [
        operation
        for interface in interfaces_with(view, spec.name, Role.UPLINK)
        if interface.name != spec.uplink
        for operation in remove_port(view, spec.name, interface)
    ]
    return [*former, *_port_difference(view, spec.name, ref(bridge.uuid), uplink)]


def uplink_of(view: View, bridge: str) -> str | None:
    """The NIC that is a port of the bridge as its uplink."""
    return next((interface.name for interface in interfaces_with(view, bridge, Role.UPLINK)), None)


def known_bridge(view: View, name: str) -> Bridge:
    bridge = view.bridges.get(name)
    if bridge is None:
        raise SwitchRefusedError(f"{name}: there is no such bridge; the agent makes it anew when it next reconciles")
    return bridge


def interfaces_with(view: View, bridge: str, role: Role) -> list[Interface]:
    return [i for i in view.interfaces_of(bridge) if i.external_ids.get(ROLE) == role.value]


def insert_port(bridge: Reference, role: Role, columns: Mapping[str, Value]) -> list[Operation]:
    """A port and its interface of the same name."""
    port, interface = f"{role.value}_port", f"{role.value}_interface"
    return [
        insert(Interface, interface, columns),
        insert(Port, port, {"name": columns["name"], "interfaces": new_ref(interface)}),
        link(Bridge, bridge, "ports", new_ref(port)),
    ]


def remove_port(view: View, bridge: str, interface: Interface) -> list[Operation]:
    return [unlink(view.bridges[bridge], "ports", ref(view.ports[interface.name].uuid))]


# ---- details

_NEW_BRIDGE: Final = "bridge"

_HINTS: Final = {
    Role.UPLINK.value: "set `uplink` to the name of a NIC of this Node that no other bridge holds",
    Role.TUNNEL.value: "another tunnel may hold its UDP port: remove that, or set `tunnelType` to the other kind",
    Role.GATEWAY.value: "an interface of this name may be there already: remove it, or set `gateway` to another name",
    Role.LOCAL.value: "an interface of this name may be there already: remove it, or set `bridge` to another name",
    Role.POD.value: "its interface must be there before its port is added",
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    role: Role
    type: str
    number: int | None = None
    mac: str | None = None
    mtu: int | None = None
    options: Mapping[str, str] | None = None
    ids: Mapping[str, str] = field(default_factory=dict)  # further external_ids; an empty value is none

    @property
    def external_ids(self) -> dict[str, str]:
        return {ROLE: self.role.value, **{key: value for key, value in self.ids.items() if value}}

    @property
    def columns(self) -> dict[str, Value]:
        """Those that we have an opinion about."""
        opinions: dict[str, Value | None] = {
            "type": self.type,
            "ofport_request": self.number,
            "mac": self.mac,
            "mtu_request": self.mtu,
            "options": self.options,
        }
        return {column: value for column, value in opinions.items() if value is not None}


def _wanted(spec: BridgeSpec) -> Iterator[_Wanted]:
    yield _Wanted(spec.name, Role.LOCAL, type="internal", mtu=spec.mtu)
    yield _Wanted(
        spec.gateway,
        Role.GATEWAY,
        type="internal",
        number=spec.numbers.gateway,
        mac=spec.gateway_mac,
        mtu=spec.gateway_mtu,
    )
    if spec.tunnel:
        yield _Wanted(
            spec.tunnel.name,
            Role.TUNNEL,
            type=spec.tunnel.type.value,
            number=spec.numbers.tunnel,
            options=spec.tunnel.options,
        )


def _other_config(spec: BridgeSpec) -> dict[str, str]:
    # In-band control would put hidden flows above ours; there is no controller that it could be for.
    return {"hwaddr": spec.hwaddr, "disable-in-band": "true"}


def _new_bridge(view: View, spec: BridgeSpec) -> Iterator[Operation]:
    if view.root is None:
        yield insert(OpenVSwitch, "root", {})
    yield insert(
        Bridge,
        _NEW_BRIDGE,
        {
            "name": spec.name,
            "datapath_type": spec.datapath_type,
            "fail_mode": "secure",  # never a learning switch, not even for the moment before the first flow
            "protocols": spec.protocols,
            "other_config": _other_config(spec),
        },
    )
    root = ref(view.root.uuid) if view.root else new_ref("root")
    yield link(OpenVSwitch, root, "bridges", new_ref(_NEW_BRIDGE))


def _changed_bridge(bridge: Bridge, spec: BridgeSpec) -> Iterator[Operation]:
    columns: dict[str, Value] = {}
    if bridge.datapath_type != spec.datapath_type:
        columns["datapath_type"] = spec.datapath_type
    if bridge.fail_mode != "secure":
        columns["fail_mode"] = "secure"
    if not spec.protocols <= bridge.protocols:
        columns["protocols"] = spec.protocols | bridge.protocols
    if columns:
        yield update(bridge, columns)
    if differing := _differing(_other_config(spec), bridge.other_config):
        yield put_keys(bridge, "other_config", differing)


def _port_difference(view: View, bridge: str, target: Reference, port: _Wanted) -> Iterator[Operation]:
    interface = view.interfaces.get(port.name)
    if interface is None:
        columns = {"name": port.name, **port.columns, "external_ids": port.external_ids}
        yield from insert_port(target, port.role, columns)
        return
    refuse_foreign(view, bridge, port.name)
    columns = {column: value for column, value in port.columns.items() if getattr(interface, column) != value}
    if columns:
        yield update(interface, columns)
    if differing := _differing(port.external_ids, interface.external_ids):
        yield put_keys(interface, "external_ids", differing)


def refuse_foreign(view: View, bridge: str, interface: str) -> None:
    """An interface that is there already must be on our bridge, as a port of its own."""
    holder = view.bridge_of(interface)
    if holder is None or holder.name != bridge:
        where = f"is a port of bridge {holder.name}" if holder else "is part of a bond"
        raise SwitchRefusedError(
            f"{bridge}: port {interface}: {where}; remove it there (ovs-vsctl del-port {interface}), "
            "or choose another name"
        )


def _differing(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def _outdated_uplink(view: View, spec: BridgeSpec) -> list[Operation]:
    known_bridge(view, spec.name)
    return [
        operation
        for interface in interfaces_with(view, spec.name, Role.UPLINK)
        if spec.uplink_index is not None and interface.external_ids.get(INDEX, "") not in {"", str(spec.uplink_index)}
        for operation in remove_port(view, spec.name, interface)
    ]


def _without(view: View, bridge: str, role: Role) -> list[Operation]:
    interfaces = interfaces_with(view, bridge, role)
    return [operation for interface in interfaces for operation in remove_port(view, bridge, interface)]


def _settled(view: View, bridge: str, interface: str) -> Interface | None:
    row = view.interfaces.get(interface)
    if row is None:
        raise SwitchRefusedError(f"{bridge}: port {interface}: somebody deleted it")
    return row if row.ofport is not None or row.error else None


async def _requested_numbers(db: Database, bridge: str, requests: Mapping[str, int]) -> Mapping[str, int]:
    """Flows are made for a number before its port is: another one is as good as none.

    ovs-vswitchd takes a number from a port that did not ask for it, but only one each time it looks.
    """
    for _ in range(3):
        given = {name: await port_number(db, bridge, name) for name in requests}
        if given == requests:
            return given
        await db.carried_out(await db.change(lambda _: [count()]))
    interface, number = next(request for request in requests.items() if request not in given.items())
    holder = next((i.name for i in db.view.interfaces_of(bridge) if i.ofport == number), "another port")
    raise SwitchRefusedError(
        f"{bridge}: port {interface}: its number {number} is held by {holder}, which asks for it, too; "
        f"release it: ovs-vsctl clear Interface {holder} ofport_request"
    )
