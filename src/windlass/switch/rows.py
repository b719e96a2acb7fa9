"""What the Open_vSwitch database holds, as typed rows, and how RFC 7047 writes it down. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, TypeVar, get_origin

import msgspec
from msgspec import Struct

DATABASE: Final = "Open_vSwitch"


class Row(Struct, frozen=True, kw_only=True):
    """The fields of a row type are the columns that are monitored, with the database's defaults.

    A column of at most one value is that value or None, a column of many is a frozenset, a map is a dict.
    """

    uuid: str


class OpenVSwitch(Row, frozen=True, kw_only=True):
    bridges: frozenset[str] = frozenset()  # uuids
    next_cfg: int = 0  # counts the changes asked for
    cur_cfg: int = 0  # up to this one ovs-vswitchd has carried them out
    datapaths: dict[str, str] = {}  # uuids, by the datapath's type
    other_config: dict[str, str] = {}


class Bridge(Row, frozen=True, kw_only=True):
    name: str
    ports: frozenset[str] = frozenset()  # uuids
    datapath_type: str = ""
    fail_mode: str | None = None
    protocols: frozenset[str] = frozenset()
    other_config: dict[str, str] = {}


class Port(Row, frozen=True, kw_only=True):
    name: str
    interfaces: frozenset[str] = frozenset()  # uuids


class Interface(Row, frozen=True, kw_only=True):
    name: str
    type: str = ""
    ofport: int | None = None  # None: ovs-vswitchd has not seen it yet; -1: it could not make it
    ofport_request: int | None = None
    mac: str | None = None
    mac_in_use: str | None = None
    mtu_request: int | None = None
    error: str | None = None
    options: dict[str, str] = {}
    external_ids: dict[str, str] = {}


class Datapath(Row, frozen=True, kw_only=True):
    ct_zones: dict[int, str] = {}  # uuids, by the zone's number
    capabilities: dict[str, str] = {}  # as ovs-vswitchd found them
    external_ids: dict[str, str] = {}


class Zone(Row, frozen=True, kw_only=True):
    timeout_policy: str | None = None  # uuid


class TimeoutPolicy(Row, frozen=True, kw_only=True):
    timeouts: dict[str, int] = {}  # seconds


TABLES: Final[Mapping[str, type[Row]]] = {
    "Open_vSwitch": OpenVSwitch,
    "Bridge": Bridge,
    "Port": Port,
    "Interface": Interface,
    "Datapath": Datapath,
    "CT_Zone": Zone,
    "CT_Timeout_Policy": TimeoutPolicy,
}


@dataclass(frozen=True, slots=True)
class View:
    """The database as last heard of, also while the connection is lost.

    Rows that have a name are held by it (it is unique in its table), the others by their uuid.
    """

    connections: int = 0  # how many there were: one that was lost and regained is a change, too
    problem: str = ""  # why there is no connection; empty while there is one
    root: OpenVSwitch | None = None
    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    ports: Mapping[str, Port] = field(default_factory=dict)
    interfaces: Mapping[str, Interface] = field(default_factory=dict)
    datapaths: Mapping[str, Datapath] = field(default_factory=dict)
    zones: Mapping[str, Zone] = field(default_factory=dict)
    timeout_policies: Mapping[str, TimeoutPolicy] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of the last change that ovs-vswitchd has carried out."""
        return self.root.cur_cfg if self.root else 0

    def bridge_of(self, port: str) -> Bridge | None:
        row = self.ports.get(port)
        if row is None:
            return None
        return next((bridge for bridge in self.bridges.values() if row.uuid in bridge.ports), None)

    def interfaces_of(self, bridge: str) -> list[Interface]:
        """Of its ports that have one interface of the same name: all but bonds, which we neither make nor touch."""
        row = self.bridges.get(bridge)
        if row is None:
            return []
        ports = (port for port in self.ports.values() if port.uuid in row.ports)
        return [self.interfaces[port.name] for port in ports if port.name in self.interfaces]


# ---- from the wire


class RowUpdate(Struct, frozen=True):
    """One of the three, or none: the row is gone. Columns with their default value are left out of the first two."""

    initial: dict[str, object] | None = None
    insert: dict[str, object] | None = None
    modify: dict[str, object] | None = None  # only what changed, sets and maps as differences


Updates = dict[str, dict[str, RowUpdate]]  # table -> uuid -> update

R = TypeVar("R", bound=Row)
N = TypeVar("N", Bridge, Port, Interface)


def updated(view: View, updates: Updates) -> View:
    """The view after an `update2` of the server; a malformed one raises msgspec.ValidationError."""
    roots = [view.root] if view.root else []
    return replace(
        view,
        root=next(iter(_updated(OpenVSwitch, roots, updates.get("Open_vSwitch", {}))), None),
        bridges=_named(Bridge, view.bridges, updates.get("Bridge")),
        ports=_named(Port, view.ports, updates.get("Port")),
        interfaces=_named(Interface, view.interfaces, updates.get("Interface")),
        datapaths=_unnamed(Datapath, view.datapaths, updates.get("Datapath")),
        zones=_unnamed(Zone, view.zones, updates.get("CT_Zone")),
        timeout_policies=_unnamed(TimeoutPolicy, view.timeout_policies, updates.get("CT_Timeout_Policy")),
    )


def _named(kind: type[N], rows: Mapping[str, N], updates: dict[str, RowUpdate] | None) -> Mapping[str, N]:
    if not updates:
        return rows
    # By uuid first: one transaction may delete a row and insert another of its name.
    return {row.name: row for row in _updated(kind, rows.values(), updates)}


def _unnamed(kind: type[R], rows: Mapping[str, R], updates: dict[str, RowUpdate] | None) -> Mapping[str, R]:
    return {row.uuid: row for row in _updated(kind, rows.values(), updates)} if updates else rows


def _updated(kind: type[R], rows: Iterable[R], updates: dict[str, RowUpdate]) -> Iterable[R]:
    by_uuid = {row.uuid: row for row in rows}
    for uuid, update in updates.items():
        whole = update.insert if update.initial is None else update.initial
        if whole is not None:
            many = _columns_of_many(kind)
            plain = {column: _plain(value, many=column in many) for column, value in whole.items()}
            by_uuid[uuid] = msgspec.convert({**plain, "uuid": uuid}, kind)
        elif update.modify is None:
            by_uuid.pop(uuid, None)
        elif uuid in by_uuid:
            by_uuid[uuid] = _modified(by_uuid[uuid], update.modify)
        else:
            raise msgspec.ValidationError(f"modifies {kind.__name__} {uuid}, which it never sent")
    return by_uuid.values()


def _modified(row: R, columns: Mapping[str, object]) -> R:
    plain = msgspec.structs.asdict(row)
    for column, value in columns.items():
        match plain.get(column):
            case frozenset() as old:
                plain[column] = old ^ msgspec.convert(_plain(value, many=True), frozenset[str])
            case dict() as old:
                difference = msgspec.convert(_plain(value, many=False), dict[object, object])
                gone = {key for key, value in difference.items() if old.get(key) == value}
                plain[column] = {key: value for key, value in (old | difference).items() if key not in gone}
            case _:
                plain[column] = _plain(value, many=False)
    return msgspec.convert(plain, type(row))


@cache
def _columns_of_many(kind: type[Row]) -> frozenset[str]:
    return frozenset(f.name for f in msgspec.structs.fields(kind) if get_origin(f.type) is frozenset)


def _plain(value: object, *, many: bool) -> object:
    """RFC 7047 writes a set of one as its element, and an absent value as a set of none."""
    match value:
        case ["set", list(items)]:
            plain = [_plain(item, many=False) for item in items]
            return plain if many else (plain[0] if plain else None)
        case ["map", list(pairs)]:
            return {key: _plain(item, many=False) for key, item in msgspec.convert(pairs, list[tuple[object, object]])}
        case ["uuid", uuid]:
            return [uuid] if many else uuid
        case _:
            return [value] if many else value


def monitored() -> dict[str, dict[str, list[str]]]:
    """The `monitor_cond` request for exactly the columns that the row types name."""
    return {
        table: {"columns": [column for column in kind.__struct_fields__ if column != "uuid"]}
        for table, kind in TABLES.items()
    }


# ---- to the wire

Reference = tuple[str, str]
Value = str | int | Mapping[str, str] | Mapping[str, int] | frozenset[str] | Reference


def ref(uuid: str) -> Reference:
    return ("uuid", uuid)


def new_ref(name: str) -> Reference:
    """A row that the same transaction inserts, by the name the Insert gives it."""
    return ("named-uuid", name)


def notation(value: Value) -> object:
    match value:
        case frozenset():
            return ("set", sorted(value))
        case Mapping():
            return ("map", sorted(value.items()))
        case _:
            return value


class Operation(Struct, frozen=True, tag_field="op", tag=str.lower, rename="kebab"):
    table: str


class Insert(Operation, frozen=True):
    row: dict[str, object]
    uuid_name: str


class Update(Operation, frozen=True):
    where: list[object]
    row: dict[str, object]


class Mutate(Operation, frozen=True):
    where: list[object]
    mutations: list[object]


class Select(Operation, frozen=True):
    where: list[object]
    columns: list[str]


class Wait(Operation, frozen=True):
    """Refuses the whole transaction unless the one row looks like this now."""

    where: list[object]
    columns: list[str]
    rows: list[dict[str, object]]
    until: str = "=="
    timeout: int = 0


def insert(kind: type[Row], uuid_name: str, columns: Mapping[str, Value]) -> Insert:
    return Insert(_table(kind), {name: notation(value) for name, value in columns.items()}, uuid_name)


def update(row: Row, columns: Mapping[str, Value]) -> Update:
    return Update(_table(type(row)), _is(row), {name: notation(value) for name, value in columns.items()})


def put_keys(row: Row, column: str, pairs: Mapping[str, str]) -> Mutate:
    """Sets these keys of a map and leaves the others: `insert` alone would not overwrite."""
    drop = [column, "delete", notation(frozenset(pairs))]
    return Mutate(_table(type(row)), _is(row), [drop, [column, "insert", notation(pairs)]])


def drop_keys(row: Row, column: str, keys: Iterable[str]) -> Mutate:
    return Mutate(_table(type(row)), _is(row), [[column, "delete", notation(frozenset(keys))]])


def put_reference(kind: type[Row], to: Reference, column: str, key: str | int, reference: Reference) -> Mutate:
    """Sets one key of a map of references."""
    drop = [column, "delete", ("set", [key])]
    return Mutate(_table(kind), [["_uuid", "==", to]], [drop, [column, "insert", ("map", [(key, reference)])]])


def drop_references(row: Row, column: str, keys: Iterable[str | int]) -> Mutate:
    """A row that nothing refers to any more is removed by the database itself."""
    return Mutate(_table(type(row)), _is(row), [[column, "delete", ("set", list(keys))]])


def link(kind: type[Row], to: Reference, column: str, reference: Reference) -> Mutate:
    """Into a set of references of a row, which the same transaction may have inserted."""
    return Mutate(_table(kind), [["_uuid", "==", to]], [[column, "insert", ("set", [reference])]])


def unlink(row: Row, column: str, reference: Reference) -> Mutate:
    """A row that nothing refers to any more is removed by the database itself."""
    return Mutate(_table(type(row)), _is(row), [[column, "delete", ("set", [reference])]])


def count() -> Mutate:
    """Has ovs-vswitchd look at its whole configuration, and say in `cur_cfg` when it is through with it."""
    return Mutate(_table(OpenVSwitch), [], [["next_cfg", "+=", 1]])


def still_there(row: Bridge) -> Wait:
    return Wait(_table(Bridge), _is(row), ["name"], [{"name": row.name}])


def _is(row: Row) -> list[object]:
    return [["_uuid", "==", ref(row.uuid)]]


@cache
def _table(kind: type[Row]) -> str:
    return next(table for table, row in TABLES.items() if row is kind)
