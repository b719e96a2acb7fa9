"""Rules for the files of tests: a rename in src must not make a test pass without its fault."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import windlass

TESTS = Path(__file__).parents[1]
SOURCE = Path(windlass.__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OWN = {"self", "cls"}


def trees(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(folder.rglob("*.py")):
        yield str(file.relative_to(folder)), ast.parse(file.read_text())


def classes(folder: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    for file, tree in trees(folder):
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_private_attributes_are_set_only_where_mypy_knows_the_type():
    """Python accepts any name in an assignment. mypy refuses an unknown one if the parameter has a type."""
    found = []
    for file, tree in trees(TESTS):
        for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
            typed = OWN | {argument.arg for argument in function.args.args if argument.annotation}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_private(node.attr):
                    found += [f"{file}:{node.lineno} {ast.unparse(node)}"] if root(node) not in typed else []
    assert found == []


def test_monkeypatch_refuses_unknown_names():
    found = [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, tree in trees(TESTS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        if ast.unparse(node.func) == "setattr" or any(keyword.arg == "raising" for keyword in node.keywords)
    ]
    assert found == []


def test_private_methods_override_methods_that_exist():
    """In subclasses of the classes of src. A public method is rarely renamed, and mostly calls super()."""
    bases = {node.name: node for _, node in classes(SOURCE)}

    def methods(name: str) -> set[str]:
        if name not in bases:
            return set()
        own = {node.name for node in bases[name].body if isinstance(node, FUNCTIONS)}
        return own.union(*(methods(ast.unparse(base)) for base in bases[name].bases))

    found = [
        f"{file}: {node.name}.{method.name}"
        for file, node in classes(TESTS)
        if (inherited := set[str]().union(*(methods(ast.unparse(base)) for base in node.bases)))
        for method in node.body
        if isinstance(method, FUNCTIONS) and is_private(method.name) and method.name not in inherited
    ]
    assert found == []
