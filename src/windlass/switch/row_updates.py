"""Applies updates from ovsdb-server (RFC 7047, `update2`) to a view of the database. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import TypeVar, get_origin

import msgspec
from msgspec import Struct

from windlass.switch.rows import (
    TABLES,
    BridgeRow,
    DatapathRow,
    FlowTableRow,
    InterfaceRow,
    OpenVSwitchRow,
    PortRow,
    Row,
    TimeoutPolicyRow,
    View,
    ZoneRow,
)


class RowUpdate(Struct, frozen=True):
    """At most one of the three is set; if none is, the row was deleted.

    `initial` and `insert` leave out columns with their default value.
    """

    initial: dict[str, object] | None = None
    insert: dict[str, object] | None = None
    modify: dict[str, object] | None = None  # only changed columns; sets and maps as differences


Updates = dict[str, dict[str, RowUpdate]]  # table -> uuid -> update

R = TypeVar("R", bound=Row)
N = TypeVar("N", BridgeRow, PortRow, InterfaceRow)


def updated(view: View, updates: Updates) -> View:
    """The view after this update. Raises msgspec.ValidationError for a malformed one."""
    roots = [view.root] if view.root else []
    return replace(
        view,
        root=next(iter(_updated(OpenVSwitchRow, roots, updates.get("Open_vSwitch", {}))), None),
        bridges=_named(BridgeRow, view.bridges, updates.get("Bridge")),
        flow_tables=_unnamed(FlowTableRow, view.flow_tables, updates.get("Flow_Table")),
        ports=_named(PortRow, view.ports, updates.get("Port")),
        interfaces=_named(InterfaceRow, view.interfaces, updates.get("Interface")),
        datapaths=_unnamed(DatapathRow, view.datapaths, updates.get("Datapath")),
        zones=_unnamed(ZoneRow, view.zones, updates.get("CT_Zone")),
        timeout_policies=_unnamed(TimeoutPolicyRow, view.timeout_policies, updates.get("CT_Timeout_Policy")),
    )


def _named(kind: type[N], rows: Mapping[str, N], updates: dict[str, RowUpdate] | None) -> Mapping[str, N]:
    if not updates:
        return rows
    # By uuid first: one transaction may delete a row and insert another one with the same name.
    return {row.name: row for row in _updated(kind, rows.values(), updates)}


def _unnamed(kind: type[R], rows: Mapping[str, R], updates: dict[str, RowUpdate] | None) -> Mapping[str, R]:
    return {row.uuid: row for row in _updated(kind, rows.values(), updates)} if updates else rows


def _updated(kind: type[R], rows: Iterable[R], updates: dict[str, RowUpdate]) -> Iterable[R]:
    by_uuid = {row.uuid: row for row in rows}
    for uuid, update in updates.items():
        whole = update.insert if update.initial is None else update.initial
        if whole is not None:
            sets = _set_columns(kind)
            plain = {column: _plain(value, is_set=column in sets) for column, value in whole.items()}
            by_uuid[uuid] = msgspec.convert({**plain, "uuid": uuid}, kind)
        elif update.modify is None:
            by_uuid.pop(uuid, None)
        elif uuid in by_uuid:
            by_uuid[uuid] = _modified(by_uuid[uuid], update.modify)
        else:
            raise msgspec.ValidationError(f"modifies {kind.__name__} {uuid}, which was never sent")
    return by_uuid.values()


def _modified(row: R, columns: Mapping[str, object]) -> R:
    plain = msgspec.structs.asdict(row)
    for column, value in columns.items():
        match plain.get(column):
            case frozenset() as old:
                plain[column] = old ^ msgspec.convert(_plain(value, is_set=True), frozenset[str])
            case dict() as old:
                difference = msgspec.convert(_plain(value, is_set=False), dict[object, object])
                gone = {key for key, value in difference.items() if old.get(key) == value}
                plain[column] = {key: value for key, value in (old | difference).items() if key not in gone}
            case _:
                plain[column] = _plain(value, is_set=False)
    return msgspec.convert(plain, type(row))


@cache
def _set_columns(kind: type[Row]) -> frozenset[str]:
    return frozenset(f.name for f in msgspec.structs.fields(kind) if get_origin(f.type) is frozenset)


def _plain(value: object, *, is_set: bool) -> object:
    """A plain Python value. RFC 7047 writes a set of one as its element, and an absent value as an empty set."""
    match value:
        case ["set", list(items)]:
            plain = [_plain(item, is_set=False) for item in items]
            return plain if is_set else (plain[0] if plain else None)
        case ["map", list(pairs)]:
            return {
                key: _plain(item, is_set=False) for key, item in msgspec.convert(pairs, list[tuple[object, object]])
            }
        case ["uuid", uuid]:
            return [uuid] if is_set else uuid
        case _:
            return [value] if is_set else value


def monitored() -> dict[str, dict[str, list[str]]]:
    """The `monitor_cond` request for exactly the columns that the row types name."""
    return {
        table: {"columns": [column for column in kind.__struct_fields__ if column != "uuid"]}
        for table, kind in TABLES.items()
    }
