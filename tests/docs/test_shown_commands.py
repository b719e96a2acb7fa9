"""Every command that README and docs show is run by a test, or listed in `shown_commands` with the reason."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from shown_commands import ALONE, NOT_RUN, ON_A_CLUSTER, PAGES, WITH_A_LAB, WITH_OUTPUT, shown
from windlass.cli.main import main

SHOWN = [*shown()]
RUN = (*ALONE, *WITH_OUTPUT, *WITH_A_LAB, *ON_A_CLUSTER)


def reasons(command: str) -> list[str]:
    return [beginning for beginning in NOT_RUN if f"{command} ".startswith(beginning)]


def test_every_shown_command_is_run_or_listed():
    """Add a new command to one of the lists in tests/shown_commands.py."""
    assert [str(one) for one in SHOWN if one.command not in RUN and not reasons(one.command)] == []


def test_nothing_is_listed_that_no_page_shows():
    commands = {one.command for one in SHOWN}
    assert [command for command in RUN if command not in commands] == []
    used = {beginning for command in commands if command not in RUN for beginning in reasons(command)}
    assert sorted(set(NOT_RUN) - used) == []


def spans() -> list[tuple[str, str]]:
    """The commands within sentences: `windlass status --json`, but not names of files or of metrics."""
    return [
        (page.name, span)
        for page in PAGES
        for span in re.findall(
            r"`(windlass [a-z][^`\n]*)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
    ]


@pytest.mark.parametrize(("page", "span"), sorted(set(spans())))
def test_a_command_in_a_sentence_names_commands_and_options_that_exist(page: str, span: str):
    words = shlex.split(span)[1:]
    command: click.Command = main
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"{page}: `{span}`: there is no command {words[0]}"
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    assert options <= {*known, "--help"}, f"{page}: `{span}`"
