"""Rules for every source file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import windlass

SOURCE = Path(windlass.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, MOST_METHODS = 400, 60, 20
REASON = "Longer than 400 lines"  # begins the sentence that states why a file is
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_module_says_what_it_is_responsible_for(module):
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module}: its docstring is to say that in one sentence"


@pytest.mark.parametrize("module", [*MODULES, *SOURCE.rglob("*.c")], ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_file_stays_short_enough_to_read(module):
    text = module.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE or REASON in text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_functions_and_classes_stay_short_enough_to_read(module):
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, FUNCTIONS):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
        if isinstance(node, ast.ClassDef):
            assert sum(isinstance(statement, FUNCTIONS) for statement in node.body) <= MOST_METHODS, node.name
