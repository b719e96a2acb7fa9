"""Rules for every source file."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import windlass

SOURCE = Path(windlass.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
REPOSITORY = Path(__file__).parents[2]
PROGRAMS = sorted(
    file
    for folder in (SOURCE, REPOSITORY / "tests", REPOSITORY / "tools")
    for file in folder.rglob("*")
    if file.suffix in {".py", ".c", ".go"} or (file.is_file() and not file.suffix and folder.name == "tools")
)
LONGEST_FILE, LONGEST_FUNCTION, MOST_METHODS = 400, 60, 20
REASON = "Longer than 400 lines"  # begins the sentence that states why a file is
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ALIAS = re.compile(r"[A-Z]\w*[a-z]\w*")  # not a constant, and not a TypeVar such as T or _T
NO_BLOCK = re.compile(r"(from|import) |\w+,$")  # an import, and a name within one


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_module_says_what_it_is_responsible_for(module):
    assert ast.get_docstring(ast.parse(module.read_text())), f"{module}: its docstring is to say that in one sentence"


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_a_file_stays_short_enough_to_read(file):
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE or REASON in text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_functions_and_classes_stay_short_enough_to_read(module):
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, FUNCTIONS):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
        if isinstance(node, ast.ClassDef):
            assert sum(isinstance(statement, FUNCTIONS) for statement in node.body) <= MOST_METHODS, node.name


def test_the_name_of_a_class_or_an_alias_means_one_thing():
    """An alias is a public name in mixed case, assigned in a module: `Say = Callable[[str], None]`."""
    classes, aliases = defaultdict(list), defaultdict(list)
    for module in MODULES:
        tree, name = ast.parse(module.read_text()), str(module.relative_to(SOURCE))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{name}:{node.lineno}")
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    aliases[ast.unparse(target)].append(f"{name}:{statement.lineno}")
    names = classes.keys() | {name for name in aliases if ALIAS.fullmatch(name)}
    places = {name: [*classes.get(name, ()), *aliases.get(name, ())] for name in names}
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_block_of_six_lines_stands_twice():
    """Lines of imports, and lines of brackets only, do not count."""
    places: dict[tuple[str, ...], list[str]] = {}
    for module in MODULES:
        lines = [(number, line.strip()) for number, line in enumerate(module.read_text().splitlines(), start=1)]
        lines = [(number, line) for number, line in lines if re.search(r"\w", line) and not NO_BLOCK.match(line)]
        for i in range(len(lines) - 5):
            block = tuple(line for _, line in lines[i : i + 6])
            places.setdefault(block, []).append(f"{module.relative_to(SOURCE)}:{lines[i][0]}")
    assert [where for where in places.values() if len(where) > 1] == []
