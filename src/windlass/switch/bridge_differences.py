"""How the Node's bridge in the database differs from a BridgeSpec, as operations that make it equal. No I/O.

Ports that Windlass did not make are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from windlass.pipeline.layout import EGRESS_PEER, INGRESS_PEER
from windlass.switch.bridge_specs import BOOT, INDEX, ROLE, BridgeSpec, Role
from windlass.switch.operations import (
    Operation,
    RowReference,
    Value,
    insert,
    link,
    new_ref,
    put_keys,
    put_reference,
    ref,
    unlink,
    update,
)
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.rows import BridgeRow, FlowTableRow, InterfaceRow, OpenVSwitchRow, PortRow, View


def bridge_difference(view: View, spec: BridgeSpec) -> list[Operation]:
    """The operations for the bridge and its ports, without the uplink; none if nothing differs."""
    wanted = list(wanted_ports(spec))
    stale = [
        interface
        for interface in view.interfaces_of(spec.name)
        if interface.external_ids.get(ROLE) in {Role.GATEWAY.value, Role.TUNNEL.value}
        and interface.name not in {port.name for port in wanted}
    ]
    bridge = view.bridges.get(spec.name)
    operations = list(_new_bridge(view, spec) if bridge is None else _changed_bridge(bridge, spec))
    target = new_ref(_NEW_BRIDGE) if bridge is None else ref(bridge.uuid)
    operations += _table_difference(view, bridge, target)
    for interface in stale:
        operations += remove_port(view, spec.name, interface)
    for port in wanted:
        operations += _port_difference(view, spec.name, target, port)
    return operations


def uplink_difference(view: View, spec: BridgeSpec) -> list[Operation]:
    bridge = known_bridge(view, spec.name)
    ids = {INDEX: "" if spec.uplink_index is None else str(spec.uplink_index), BOOT: spec.boot}
    uplink = WantedPort(spec.uplink, Role.UPLINK, type="", number=spec.numbers.uplink, ids=ids)
    former = [
        operation
        for interface in interfaces_with(view, spec.name, Role.UPLINK)
        if interface.name != spec.uplink
        for operation in remove_port(view, spec.name, interface)
    ]
    return [*former, *_port_difference(view, spec.name, ref(bridge.uuid), uplink)]


def has_uplink(view: View, spec: BridgeSpec) -> bool:
    """Whether the NIC is a port already. SwitchRefusedError if it cannot become one."""
    uplink_difference(view, spec)
    return uplink_of(view, spec.name) == spec.uplink and not outdated_uplink(view, spec)


def uplink_of(view: View, bridge: str) -> str | None:
    """The name of the NIC that is the bridge's uplink."""
    return next((interface.name for interface in interfaces_with(view, bridge, Role.UPLINK)), None)


def known_bridge(view: View, name: str) -> BridgeRow:
    bridge = view.bridges.get(name)
    if bridge is None:
        raise SwitchRefusedError(f"{name}: there is no such bridge; the agent creates it when it next reconciles")
    return bridge


def interfaces_with(view: View, bridge: str, role: Role) -> list[InterfaceRow]:
    return [i for i in view.interfaces_of(bridge) if i.external_ids.get(ROLE) == role.value]


def insert_port(bridge: RowReference, role: Role, columns: Mapping[str, Value]) -> list[Operation]:
    """A port, and its interface of the same name."""
    port, interface = f"{role.value}_port", f"{role.value}_interface"
    return [
        insert(InterfaceRow, interface, columns),
        insert(PortRow, port, {"name": columns["name"], "interfaces": new_ref(interface)}),
        link(BridgeRow, bridge, "ports", new_ref(port)),
    ]


def remove_port(view: View, bridge: str, interface: InterfaceRow) -> list[Operation]:
    return [unlink(view.bridges[bridge], "ports", ref(view.ports[interface.name].uuid))]


_NEW_BRIDGE: Final = "bridge"

# Which prefixes of addresses the switch tracks in the tables of policy peers. By prefixes, one datapath flow serves all
# addresses that the policies in use do not tell apart. Open vSwitch before 3.5 tracks those of IPv6 only if that
# is configured: otherwise each IPv6 client of a Pod with policies takes a datapath flow.
PREFIXES: Final[Mapping[int, frozenset[str]]] = {
    EGRESS_PEER.number: frozenset({"ip_dst", "ipv6_dst"}),
    INGRESS_PEER.number: frozenset({"ip_src", "ipv6_src"}),
}


@dataclass(frozen=True, slots=True)
class WantedPort:
    name: str
    role: Role
    type: str
    number: int | None = None
    mac: str | None = None
    mtu: int | None = None
    options: Mapping[str, str] | None = None
    ids: Mapping[str, str] = field(default_factory=dict)  # more external_ids; empty values are left out

    @property
    def external_ids(self) -> dict[str, str]:
        return {ROLE: self.role.value, **{key: value for key, value in self.ids.items() if value}}

    @property
    def columns(self) -> dict[str, Value]:
        """The columns with a value in the spec; other columns are left as they are."""
        requested: dict[str, Value | None] = {
            "type": self.type,
            "ofport_request": self.number,
            "mac": self.mac,
            "mtu_request": self.mtu,
            "options": self.options,
        }
        return {column: value for column, value in requested.items() if value is not None}


def wanted_ports(spec: BridgeSpec) -> Iterator[WantedPort]:
    yield WantedPort(spec.name, Role.LOCAL, type="internal", mtu=spec.mtu)
    yield WantedPort(
        spec.gateway,
        Role.GATEWAY,
        type="internal",
        number=spec.numbers.gateway,
        mac=spec.gateway_mac,
        mtu=spec.gateway_mtu,
    )
    if spec.tunnel:
        yield WantedPort(
            spec.tunnel.name,
            Role.TUNNEL,
            type=spec.tunnel.type.value,
            number=spec.numbers.tunnel,
            options=spec.tunnel.options,
        )


def _other_config(spec: BridgeSpec) -> dict[str, str]:
    # In-band control would add hidden flows above ours, for a controller that does not exist.
    return {"hwaddr": spec.hwaddr, "disable-in-band": "true"}


def _new_bridge(view: View, spec: BridgeSpec) -> Iterator[Operation]:
    if view.root is None:
        yield insert(OpenVSwitchRow, "root", {})
    yield insert(
        BridgeRow,
        _NEW_BRIDGE,
        {
            "name": spec.name,
            "datapath_type": spec.datapath_type,
            "fail_mode": "secure",  # never a learning switch, not even before the first flow
            "protocols": spec.protocols,
            "other_config": _other_config(spec),
        },
    )
    root = ref(view.root.uuid) if view.root else new_ref("root")
    yield link(OpenVSwitchRow, root, "bridges", new_ref(_NEW_BRIDGE))


def _changed_bridge(bridge: BridgeRow, spec: BridgeSpec) -> Iterator[Operation]:
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


def _port_difference(view: View, bridge: str, target: RowReference, port: WantedPort) -> Iterator[Operation]:
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
    """Raises SwitchRefusedError if an existing interface is not a port of this bridge."""
    holder = view.bridge_of(interface)
    if holder is None or holder.name != bridge:
        where = f"is a port of bridge {holder.name}" if holder else "is part of a bond"
        raise SwitchRefusedError(
            f"{bridge}: port {interface}: {where}; remove it there (ovs-vsctl del-port {interface}), "
            "or choose another name"
        )


def _table_difference(view: View, bridge: BridgeRow | None, target: RowReference) -> Iterator[Operation]:
    """`target`: the bridge; another program's settings of other tables stay."""
    for number, prefixes in PREFIXES.items():
        row = view.flow_tables.get(bridge.flow_tables.get(number, "")) if bridge else None
        if row is None or row.prefixes != prefixes:
            name = f"table_{number}"
            yield insert(FlowTableRow, name, {"prefixes": prefixes})
            yield put_reference(BridgeRow, target, "flow_tables", number, new_ref(name))


def _differing(wanted: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if current.get(key) != value}


def outdated_uplink(view: View, spec: BridgeSpec) -> list[Operation]:
    """Removes an uplink port of a NIC that was replaced by another one of the same name."""
    known_bridge(view, spec.name)
    return [
        operation
        for interface in interfaces_with(view, spec.name, Role.UPLINK)
        if spec.uplink_index is not None and interface.external_ids.get(INDEX, "") not in {"", str(spec.uplink_index)}
        for operation in remove_port(view, spec.name, interface)
    ]


def removal(view: View, bridge: str, role: Role) -> list[Operation]:
    interfaces = interfaces_with(view, bridge, role)
    return [operation for interface in interfaces for operation in remove_port(view, bridge, interface)]
