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


def test_each_walk_through_the_code_is_short():
    sections = (ROOT / PAGES[0]).read_text().split("\n## ")
    walks = [section for section in sections if re.match(r"An EndpointSlice change|A CNI ADD|A probe", section)]
    assert len(walks) == 3
    assert all(0 < len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= 15 for walk in walks)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str):
    """As a path from the root, or from a folder of the code; NAME and FOLDER are placeholders."""
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|yaml|txt|md|sh|c))`", (ROOT / page).read_text()))
    code = ROOT / "src" / "windlass"
    folders = (ROOT, code, code / "host")
    wrong = [name for name in named if "NAME" not in name and not any((folder / name).exists() for folder in folders)]
    assert wrong == []


def _defines(file: Path, name: str) -> bool:
    if not file.exists() or FILE_ALONE.search(name):
        return file.exists()
    last = name.rpartition(".")[2]
    definition = re.compile(rf"^\s*(async def|def|class) {last}\b", re.MULTILINE)
    return last == file.stem or definition.search(file.read_text()) is not None
