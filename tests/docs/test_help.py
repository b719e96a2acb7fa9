"""Every page of --help is readable: no markup, and examples that work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from windlass.cli.main import main
from windlass.lab.scenarios import scenario_files

ROOT = Path(__file__).parents[2]


def _pages(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _pages(child, (*path, name))


PAGES = [*_pages(main)]


def page(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=100)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_it_has_no_leftovers_of_its_markup(path):
    assert not re.search(r"\\b|\x08|:param|``", page(path))


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_its_examples_name_commands_scenarios_and_nodes_that_exist(path):
    for example in re.findall(
        r"windlass ([a-z][a-z -]*?)(?: (scenarios/\S+))?(?: .*?--node (\S+))?$", page(path), re.MULTILINE
    ):
        command, scenario, node = example
        assert any(command.startswith(" ".join(known)) for known in PAGES if known), command
        if scenario and "found" not in scenario:
            *_, (_, desired) = scenario_files.find_one(ROOT / scenario).read().states()
            assert not node or node in desired.nodes
