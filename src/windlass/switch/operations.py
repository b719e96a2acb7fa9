"""Operations of an OVSDB transaction as RFC 7047 writes them. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from msgspec import Struct

from windlass.switch.rows import TABLES, BridgeRow, OpenVSwitchRow, Row

RowReference = tuple[str, str]
Value = str | int | Mapping[str, str] | Mapping[str, int] | frozenset[str] | RowReference


def ref(uuid: str) -> RowReference:
    return ("uuid", uuid)


def new_ref(name: str) -> RowReference:
    """A row that the same transaction inserts, by the `uuid_name` of its Insert."""
    return ("named-uuid", name)


def _notation(value: Value) -> object:
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
    """Fails the whole transaction unless the row has these values now."""

    where: list[object]
    columns: list[str]
    rows: list[dict[str, object]]
    until: str = "=="
    timeout: int = 0


def insert(kind: type[Row], uuid_name: str, columns: Mapping[str, Value]) -> Insert:
    return Insert(_table(kind), {name: _notation(value) for name, value in columns.items()}, uuid_name)


def update(row: Row, columns: Mapping[str, Value]) -> Update:
    return Update(_table(type(row)), _where(row), {name: _notation(value) for name, value in columns.items()})


def put_keys(row: Row, column: str, pairs: Mapping[str, str]) -> Mutate:
    """Sets these keys of a map and keeps the others. It deletes them first: `insert` does not overwrite."""
    drop = [column, "delete", _notation(frozenset(pairs))]
    return Mutate(_table(type(row)), _where(row), [drop, [column, "insert", _notation(pairs)]])


def put_reference(kind: type[Row], to: RowReference, column: str, key: str | int, reference: RowReference) -> Mutate:
    """Sets one key of a map of references."""
    drop = [column, "delete", ("set", [key])]
    return Mutate(_table(kind), [["_uuid", "==", to]], [drop, [column, "insert", ("map", [(key, reference)])]])


def drop_keys(row: Row, column: str, keys: Iterable[str | int]) -> Mutate:
    """The database itself removes a row to which nothing refers any more."""
    return Mutate(_table(type(row)), _where(row), [[column, "delete", ("set", list(keys))]])


def link(kind: type[Row], to: RowReference, column: str, reference: RowReference) -> Mutate:
    """Adds a reference to a set column of a row, which the same transaction may have inserted."""
    return Mutate(_table(kind), [["_uuid", "==", to]], [[column, "insert", ("set", [reference])]])


def unlink(row: Row, column: str, reference: RowReference) -> Mutate:
    """The database itself removes a row to which nothing refers any more."""
    return Mutate(_table(type(row)), _where(row), [[column, "delete", ("set", [reference])]])


def increment_next_cfg() -> Mutate:
    """Has ovs-vswitchd reconfigure itself, and write this number to `cur_cfg` when it is done."""
    return Mutate(_table(OpenVSwitchRow), [], [["next_cfg", "+=", 1]])


def still_exists(row: BridgeRow) -> Wait:
    return Wait(_table(BridgeRow), _where(row), ["name"], [{"name": row.name}])


def _where(row: Row) -> list[object]:
    return [["_uuid", "==", ref(row.uuid)]]


@cache
def _table(kind: type[Row]) -> str:
    return next(table for table, row in TABLES.items() if row is kind)
