"""Decisions have unique numbers, and links to them work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))


def test_each_number_is_used_once():
    assert [int(path.name[:4]) for path in DECISIONS] == [*range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_its_title_has_its_number(path):
    assert path.read_text().startswith(f"# {int(path.name[:4])}. ")


def test_links_lead_to_decisions_that_exist():
    pages = [*DOCS.glob("*.md"), *DOCS.glob("cases/*.md"), DOCS.parent / "README.md"]
    linked = {name for page in pages for name in re.findall(r"decisions/(\d{4}[a-z0-9-]*\.md)", page.read_text())}
    assert linked <= {path.name for path in DECISIONS}
