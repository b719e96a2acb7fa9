"""The generated table of all cases in docs/cases/README.md: its page, its scenario and its cost. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from case_pages import marks
from case_pages.marks import Case
from case_pages.texts import costs
from case_pages.travels import Travelled
from windlass.lab.tracing.journeys import PacketPath
from windlass.lab.tracing.megaflows import Phase

_TABLE = re.compile(r"(<!-- index -->\n).*?(<!-- end of index -->)", re.DOTALL)
_LINE = re.compile(r"^(#+) (.*)$|^<!-- case: (\S+) (\S+) (\S+) -->$", re.MULTILINE)


def filled(index: str, pages: Mapping[str, str], found: Mapping[Case, Travelled]) -> str:
    lines = [
        "| case | tried by | first packet | those that follow |",
        "| --- | --- | --- | --- |",
        *(_row(name, page, found) for name, page in pages.items() if name != "README.md"),
    ]
    return _TABLE.sub(lambda mark: f"{mark[1]}\n{chr(10).join(lines)}\n\n{mark[2]}", index)


def sections(page: str) -> Iterator[tuple[str, str, Case]]:
    """Each case with the title of its page and the heading above it."""
    title = heading = ""
    for found in _LINE.finditer(marks.filled(page, lambda _: "")):
        if found[3]:
            yield title, heading, Case(found[3], found[4], found[5])
        elif found[1] == "#":
            title = found[2]
        else:
            heading = found[2]


def anchor(heading: str) -> str:
    """As GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _row(name: str, page: str, found: Mapping[Case, Travelled]) -> str:
    rows = []
    for title, heading, case in sections(page):
        ways = found[case].journey.paths
        following = _cost(ways[Phase.ESTABLISHED]) if Phase.ESTABLISHED in ways else ""
        link = f"[{title}: {heading}]({name}#{anchor(heading)})"
        rows.append(f"| {link} | `{case.scenario}`, `{case.probe}` | {_cost(ways[Phase.FIRST])} | {following} |")
    return "\n".join(rows)


def _cost(way: PacketPath) -> str:
    passes, ct = costs(way)
    return f"{passes} passes, {ct} ct"
