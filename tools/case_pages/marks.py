"""The marks in a hand-written page between which generated text stands, and the flows that a page names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from windlass.pipeline.layout import LAYOUT

END = "<!-- end of case -->"
_BLOCK = re.compile(r"<!-- case: (\S+) (\S+) (\S+) -->\n.*?" + re.escape(END), re.DOTALL)
_NODE = re.compile(r"^\*\*.*? on (\S+?)\*\*")
_FLOW = re.compile(rf"^(?:{'|'.join(table.name for table in LAYOUT.tables.values())}) \d+ ")


@dataclass(frozen=True, slots=True)
class Case:
    """A probe of a scenario; the page shows one connection of it."""

    scenario: str  # a folder below the repository's
    step: str  # one of its files
    probe: str

    @property
    def picture(self) -> str:
        folder = PurePosixPath(self.scenario)
        return f"{folder.parent.name}-{folder.name}-{PurePosixPath(self.step).stem}-{self.probe}.svg"

    @property
    def mark(self) -> str:
        return f"<!-- case: {self.scenario} {self.step} {self.probe} -->"


def cases(page: str) -> list[Case]:
    return [Case(*found.groups()) for found in _BLOCK.finditer(page)]


def filled(page: str, generated: Callable[[Case], str]) -> str:
    """The page with the current text of each case; hand-written text is kept."""

    def fill(found: re.Match[str]) -> str:
        case = Case(*found.groups())
        return f"{case.mark}\n\n{generated(case)}\n\n{END}"

    return _BLOCK.sub(fill, page)


def flows(page: str) -> Iterator[tuple[Case, str, str]]:
    """Each flow on the page: its case, its Node, and its text."""
    for found in _BLOCK.finditer(page):
        node = ""
        for line in found[0].splitlines():
            if heading := _NODE.match(line):
                node = heading[1]
            elif _FLOW.match(line):
                yield Case(*found.groups()), node, line


def unfilled(case: Case) -> str:
    """The flows of a new page."""
    return f"{case.mark}\n{END}"
