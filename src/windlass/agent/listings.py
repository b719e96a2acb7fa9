"""The flows and groups that the agent wants in the switch, each with its owner and its reason; for the local API.

They are sent as they are computed: a hundred thousand of them need not be in memory at once. It only reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
from aiohttp import web
from msgspec import Struct

from windlass.model.nodes import NodeState
from windlass.openflow.ofctl import flow_text, group_text
from windlass.openflow.wire.flows import encode
from windlass.pipeline.layout import LAYOUT
from windlass.pipeline.symbols import flow_symbols, group_symbols
from windlass.program import AnyPart, Owner, OwnerKind, Program

_STEP = 20  # flows to send before other tasks run


class BadFilter(Exception):
    """The request cannot be answered. The message says what is possible instead."""


class FlowReport(Struct):
    cookie: str
    owner: str
    why: str
    table: int
    priority: int
    symbolic: str
    ofctl: str


class GroupReport(Struct):
    group: int
    owner: str
    why: str
    symbolic: str  # with a line for each bucket
    ofctl: str


class ListingFilter(Struct, frozen=True):
    """Which flows or groups are wanted; None: all."""

    owner: str | None = None  # `Service default/web`, `service/default/web`, or its kind or its name alone
    table: int | None = None
    cookie: int | None = None

    def asks_for(self, owner: str) -> bool:
        kind, _, name = owner.partition(" ")
        names = {owner.casefold(), f"{kind}/{name}".casefold(), kind.casefold(), name}
        return self.owner is None or self.owner.casefold() in names


def question(request: web.Request) -> ListingFilter:
    asked = request.query
    return ListingFilter(asked.get("owner"), _table(asked.get("table")), _cookie(asked.get("cookie")))


async def answer(
    request: web.Request, member: str, program: Program, state: NodeState | None, of: ListingFilter
) -> web.StreamResponse:
    """`{"flows": [...]}` or `{"groups": [...]}`."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(f'{{"{member}":['.encode())
    separator, passed = b"", 0
    for owner, part in list(program.items()):  # it may change meanwhile
        name = owner_name(owner, state)
        if not of.asks_for(name):
            continue
        for report in _flows(name, part, of) if member == "flows" else _groups(name, part):
            if report is not None:
                await response.write(separator + msgspec.json.encode(report))
                separator = b","
            passed += 1
            if not passed % _STEP:
                await asyncio.sleep(0)
    await response.write(b"]}")
    await response.write_eof()
    return response


def owner_name(owner: Owner, state: NodeState | None) -> str:
    """The name of the object in the cluster: the Program identifies a Pod by its container id."""
    pod = state.pods.get(owner.name) if state and owner.kind is OwnerKind.POD else None
    return f"{owner.kind.value} {pod.key}" if pod else str(owner)


def _flows(owner: str, part: AnyPart, of: ListingFilter) -> Iterator[FlowReport | None]:
    """None for a flow that the filter excludes: to compare it takes time as well."""
    for flow in part.flows:
        cookie = encode(flow).cookie if of.table in {None, flow.table} else None
        if cookie is None or of.cookie not in {None, cookie}:
            yield None
        else:
            texts = flow_symbols(flow), flow_text(flow)
            yield FlowReport(f"{cookie:#018x}", owner, flow.why, flow.table, flow.priority, *texts)


def _groups(owner: str, part: AnyPart) -> Iterator[GroupReport]:
    for group in part.groups:
        symbolic = "\n".join(group_symbols(group))
        yield GroupReport(group.identity, owner, group.why, symbolic, group_text(group))


def _table(text: str | None) -> int | None:
    """Find a table by its number or its name."""
    if text is None:
        return None
    for table in LAYOUT.tables.values():
        if text.casefold() in {table.name.casefold(), str(table.number)}:
            return table.number
    known = ", ".join(f"{table.name} ({table.number})" for table in LAYOUT.tables.values())
    raise BadFilter(f"table: there is no table {text}; the tables are {known}")


def _cookie(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        raise BadFilter(f"cookie: {text!r} is not a hexadecimal number such as 0x1f") from None
