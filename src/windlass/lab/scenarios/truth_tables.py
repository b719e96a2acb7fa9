"""Truth tables of the scenario format: what reaches what, as rows of sources and columns of targets.

A table is written cell by cell, or as a default with exceptions. Each cell is a probe with one connection for each
port; `expansions` multiplies it by the families, as it does with a table of Probes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product

from msgspec import UNSET, Struct, UnsetType

from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol

REACHES, SILENT, REFUSED, NOT_ASKED = ".", "X", "R", "#"
_OUTCOMES = {
    REACHES: ProbeOutcome.CONNECTED,
    SILENT: ProbeOutcome.TIMEOUT,
    REFUSED: ProbeOutcome.REFUSED,
}
_SYMBOLS = (*_OUTCOMES, NOT_ASKED)
_SOURCES = ("externalHost", "pod", "node")
_AT_A_NODE = ("nodePort", "service", "loadBalancer", "externalIP")  # targets that `node` belongs to

TableEnd = Mapping[str, object]


class CellError(ValueError):
    """The table is malformed. The message begins with the field."""


class TableException(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """Cells that differ from the default. Names may have wildcards: `x/*`."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    cell: str | UnsetType = UNSET  # the opposite of the default, if it is not given
    ports: tuple[int | str, ...] | None = None  # only these


class TruthTableSpec(
    Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "target": "to", "exceptions": "except"}
):
    table: str = ""  # cell by cell
    source: tuple[str, ...] = ()  # or rows and columns, with a default and exceptions
    target: tuple[str, ...] = ()
    default: str = ""
    exceptions: tuple[TableException, ...] = ()
    ports: tuple[int | str, ...] = (80,)
    ends: dict[str, dict[str, object]] = {}  # definitions of names that are not names of Pods
    families: tuple[str, ...] = ()
    connections: int = 1
    only: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if bool(self.table) == bool(self.default):
            raise ValueError("table, default: exactly one of the two is expected")
        for symbol in filter(None, (self.default, *(one.cell for one in self.exceptions if one.cell is not UNSET))):
            if symbol not in _SYMBOLS:
                raise ValueError(f"{symbol!r} is not a cell; cells are {' '.join(_SYMBOLS)}")


class _Cell(Struct, frozen=True):
    source: str
    target: str
    port: str
    symbol: str


def probes(name: str, spec: TruthTableSpec) -> Iterator[tuple[str, dict[str, object]]]:
    """The name and the spec of the probe of each cell, in order."""
    cells = [*(_written(spec) if spec.table else _by_default(spec))]
    ports_at = Counter((cell.source, cell.target) for cell in cells)
    for cell in cells:
        if cell.symbol != NOT_ASKED:
            suffix = f"-{cell.port}" if ports_at[cell.source, cell.target] > 1 else ""
            named = f"{name}-{cell.source}-to-{cell.target}{suffix}".replace("/", "-").lower()
            yield named, _probe(spec, cell)


def _written(spec: TruthTableSpec) -> Iterator[_Cell]:
    lines = [line.split() for line in spec.table.splitlines() if line.split()]
    if len(lines) < 2:
        raise CellError("table: has no rows below its header")
    header, rows = lines[0][1:], lines[1:]
    for row in rows:
        source, *symbols = row
        if len(symbols) != len(header):
            raise CellError(f"table: row {source} has {len(symbols)} cells, and the header names {len(header)} columns")
        for column, symbol in zip(header, symbols, strict=True):
            if symbol not in _SYMBOLS:
                raise CellError(f"table: row {source}, column {column}: {symbol!r} is none of {' '.join(_SYMBOLS)}")
            target, _, port = column.partition(":")
            for one in (port,) if port else map(str, spec.ports):
                yield _Cell(source, target, one, symbol)


def _by_default(spec: TruthTableSpec) -> Iterator[_Cell]:
    if not spec.source or not spec.target:
        raise CellError("from, to: a table with a default names its rows and columns")
    opposite = {REACHES: SILENT, SILENT: REACHES}
    used: set[int] = set()
    for source, target, port in product(spec.source, spec.target, map(str, spec.ports)):
        symbol = spec.default
        for number, one in enumerate(spec.exceptions):
            if _matches(one, source, target, port):
                symbol = opposite.get(spec.default, REACHES) if isinstance(one.cell, UnsetType) else one.cell
                used.add(number)
        yield _Cell(source, target, port, symbol)
    unused = [number for number in range(len(spec.exceptions)) if number not in used]
    if unused:
        raise CellError(f"except[{unused[0]}]: matches no cell of the table")


def _matches(one: TableException, source: str, target: str, port: str) -> bool:
    return (
        _is_any(source, one.source)
        and _is_any(target, one.target)
        and (one.ports is None or port in map(str, one.ports))
    )


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _probe(spec: TruthTableSpec, cell: _Cell) -> dict[str, object]:
    protocol, port = _protocol_and_port(cell.port)
    expect: dict[str, object] = {"outcome": _OUTCOMES[cell.symbol].value}
    target = _target(spec, cell.target)
    if cell.symbol == REACHES and "pod" in target:
        expect["backends"] = [target["pod"]]
    probe: dict[str, object] = {
        "from": _source(spec, cell.source),
        "to": {**({} if port is None else {"port": port}), **target},
        "connections": spec.connections,
        "expect": expect,
    }
    probe |= {"protocol": protocol} if protocol != ProbeProtocol.TCP.value else {}
    probe |= {"families": [*spec.families]} if spec.families else {}
    return probe | ({"only": [*spec.only]} if spec.only is not None else {})


def _protocol_and_port(text: str) -> tuple[str, int | str | None]:
    """`80`, `http`, `UDP/53` or `ICMP`."""
    protocol, slash, port = text.rpartition("/")
    if not slash and text == ProbeProtocol.ICMP.value:
        return text, None
    protocol = protocol or ProbeProtocol.TCP.value
    if protocol not in {one.value for one in ProbeProtocol}:
        raise CellError(f"ports: {text!r}: {protocol} is none of {', '.join(one.value for one in ProbeProtocol)}")
    return protocol, int(port) if port.isdecimal() else port


def _end(spec: TruthTableSpec, name: str) -> TableEnd:
    if name in spec.ends:
        return spec.ends[name]
    if "/" not in name:
        raise CellError(f"ends: {name} is missing; a name that is not namespace/name of a Pod is defined there")
    return {"pod": name}


def _source(spec: TruthTableSpec, name: str) -> dict[str, object]:
    end = _end(spec, name)
    for kind in _SOURCES:
        if kind in end:
            return {kind: end[kind]}
    raise CellError(f"ends.{name}: a row needs one of {', '.join(_SOURCES)}")


def _target(spec: TruthTableSpec, name: str) -> dict[str, object]:
    """The fields of a target, without those that describe the end as a source."""
    end = dict(_end(spec, name))
    end.pop("externalHost", None)
    if not any(kind in end for kind in _AT_A_NODE):
        end.pop("node", None)
        if "address" in end:
            end.pop("pod", None)
    if not end:
        raise CellError(f"ends.{name}: a column needs a target, for example address")
    return end
