"""docs/runbook.md has a section for every area of the status; the sentences that it quotes exist in the code.

A sentence that no program says any more is found here, and so is a link that leads nowhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.agent.areas import Area

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("runbook.md", "troubleshoot.md")}
GAP = "\0"  # in a sentence of the source: what is put in when it is said


def quoted() -> Iterator[str]:
    """The first column of every table under `it says`."""
    is_ours = False
    for line in PAGES["runbook.md"].splitlines():
        if not line.startswith("|"):
            is_ours = False
        elif line.startswith("| it says |"):
            is_ours = True
        elif is_ours and not line.startswith("| ---"):
            yield from re.findall("`([^`]+)`", line.split(" | ")[0].removeprefix("| "))


def said() -> Iterator[str]:
    for file in (ROOT / "src").rglob("*.py"):
        for part in ast.walk(ast.parse(file.read_text())):
            if isinstance(part, ast.JoinedStr):
                yield "".join(str(one.value) if isinstance(one, ast.Constant) else GAP for one in part.values)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
    plugin = ROOT / "src" / "windlass" / "cni" / "plugin" / "windlass-cni.c"
    yield from re.findall(r'"((?:[^"\\]|\\.)*)"', plugin.read_text())


SAID = "\n".join(said())


@pytest.mark.parametrize("sentence", list(quoted()))
def test_every_quoted_sentence_exists_in_the_code(sentence: str) -> None:
    """Every piece of it (some sentences have two parts), as it stands in some string of the source."""
    pieces = [piece.strip(" :;,[].") for piece in re.split(r"\.\.\.|; ", sentence)]
    assert [piece for piece in pieces if piece and piece not in SAID] == []


@pytest.mark.parametrize("area", Area)
def test_every_area_has_a_section(area: Area) -> None:
    assert f"\n### {area}\n" in PAGES["runbook.md"], f"docs/runbook.md: what does a problem of area {area} mean?"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        file, _, anchor = target.partition("#")
        file = file or page
        assert (ROOT / "docs" / file).exists(), target
        assert not anchor or anchor in anchors((ROOT / "docs" / file).read_text()), target


def anchors(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
