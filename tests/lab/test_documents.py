"""Objects in YAML text: a key that occurs twice is refused, or reported, because only one of its values counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.lab.scenarios.documents import documents_in
from windlass.lab.scenarios.scenario_files import find_one

POLICY = "kind: NetworkPolicy\nmetadata: {name: a}\nspec: {podSelector: {}}\n"


def read(text: str) -> tuple[list, list[str]]:
    problems: list[str] = []
    return [*documents_in(text.encode(), "all.yaml", problems)], problems


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            POLICY + POLICY,
            "line 4, column 1: the key kind is already in line 1; is `---` missing between two objects?",
        ),
        ("kind: Pod\nmetadata:\n  name: a\n  name: b\n", "line 4, column 3: the key name is already in line 3"),
        ('kind: Pod\nspec: {a: 1, "a": 2}\n', "line 2, column 14: the key a is already in line 2"),
        ("kind: Pod\nspec:\n- - x: 1\n    x: 2\n", "line 4, column 5: the key x is already in line 3"),
        ("kind: Pod\nx: &a {k: 1, k: 2}\ny: {<<: *a}\n", "line 2, column 14: the key k is already in line 2"),
    ],
)
def test_a_key_that_occurs_twice_is_refused(text: str, sentence: str):
    assert read(text) == ([], [f"all.yaml: {sentence}"])


def test_in_a_scenario_a_key_that_occurs_twice_is_reported(tmp_path: Path):
    """Scenarios that could be read can still be read."""
    twice = "kind: Pod\nkind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {clusterIP: None}\n"
    (tmp_path / "all.yaml").write_text(twice)
    read = find_one(tmp_path).read()
    [warning] = read.warnings
    assert warning.startswith("all.yaml: line 2, column 1: the key kind is already in line 1; ")
    assert warning.endswith("; the last value counts")
    assert [one.kind for step in read.steps for one in step.objects] == ["Service"]


def test_a_merged_mapping_may_have_keys_of_the_mapping_that_it_is_merged_into():
    text = "kind: Pod\nx: [&a {k: 1, l: 2}, &b {<<: *a, k: 3}]\nspec: {<<: *b, k: 4}\nstatus: {<<: [*a, *b]}\n"
    [found], problems = read(text)
    assert problems == []
    assert (found["spec"], found["x"][1]) == ({"k": 4, "l": 2}, {"k": 3, "l": 2})


def test_keys_of_different_documents_and_types_are_different():
    found, problems = read(f'{POLICY}---\n{POLICY}---\nkind: Pod\nspec: {{1: a, "1": b}}\n')
    assert (len(found), problems) == (3, [])
