"""Rules for every source file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import windlass

SOURCE = Path(windlass.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 600


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_module_says_what_it_is_responsible_for(module):
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module}: its docstring is to say that in one sentence"


@pytest.mark.parametrize("module", [*MODULES, *SOURCE.rglob("*.c")], ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_file_stays_short_enough_to_read(module):
    assert len(module.read_text().splitlines()) <= LONGEST
