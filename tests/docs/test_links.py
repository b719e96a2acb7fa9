"""Links of the docs into the code lead to files that exist, and to functions and classes that these files define."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "docs/adding-a-feature.md")
LINK = re.compile(r"\[`([^`\]]+)`\]\(\.\./([^)]+)\)")  # [`name`](../path)
FILE_ALONE = re.compile(r"\.(py|c|yaml)$|^windlass-cni$")


@pytest.mark.parametrize("page", PAGES)
def test_every_name_is_defined_where_its_link_leads(page: str):
    found = LINK.findall((ROOT / page).read_text())
    wrong = [f"{name} in {path}" for name, path in found if not _defines(ROOT / path, name)]
    assert wrong == []


def test_the_pages_have_links():
    assert all(LINK.search((ROOT / page).read_text()) for page in PAGES[:1])


def _defines(file: Path, name: str) -> bool:
    if not file.exists() or FILE_ALONE.search(name):
        return file.exists()
    last = name.rpartition(".")[2]
    definition = re.compile(rf"^\s*(async def|def|class) {last}\b", re.MULTILINE)
    return last == file.stem or definition.search(file.read_text()) is not None
