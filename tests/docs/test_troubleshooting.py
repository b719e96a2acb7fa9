"""docs/troubleshoot.md quotes what the programs say: a sentence that none of them says any more is found here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshoot.md").read_text()
GAP = "\0"  # in a sentence of the source: what is put in when it is said


def quoted() -> Iterator[str]:
    """The first column of every table under `it says`."""
    is_ours = False
    for line in PAGE.splitlines():
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
def test_what_is_quoted_is_said(sentence: str) -> None:
    """Every piece of it (some sentences have two parts), as it stands in some string of the source."""
    pieces = [piece.strip(" :;,[].") for piece in re.split(r"\.\.\.|; ", sentence)]
    assert [piece for piece in pieces if piece and piece not in SAID] == []


def test_links_within_the_page_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors


def test_links_to_other_pages_lead_somewhere() -> None:
    for page in re.findall(r"\]\(([^#)][^)]*)\)", PAGE):
        assert (ROOT / "docs" / page).exists(), page
