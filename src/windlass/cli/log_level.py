"""`windlass log-level`: how much the agent of this Node logs, shown or changed while it runs."""

from __future__ import annotations

import re
from pathlib import Path

import click
from msgspec import Struct, json

from windlass.cli import answers
from windlass.nodes.config import LogLevel

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Answer(Struct, rename="camel"):
    level: str
    configured: str
    seconds_left: float | None = None


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(?:\d+[smhd])+", str(value))
        if parts is None:
            self.fail(f"{value} is no duration; write one such as 30s, 10m, 1h30m or 1d.", parameter, context)
        return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhd])", str(value))))


@click.command("log-level")
@answers.options
@click.argument("level", required=False, type=click.Choice([level.value for level in LogLevel]))
@click.option(
    "--for",
    "seconds",
    type=_Duration(),
    help="Return to the configured level after this time, such as 10m. Without it the level stays until the agent "
    "restarts.",
)
def log_level(socket: Path | None, config: Path | None, level: str | None, seconds: float | None) -> None:
    """Show how much the agent of this Node logs, or change it while the agent runs.

    \b
    windlass log-level                    which level is in force?
    windlass log-level debug --for 10m    more, for ten minutes
    windlass log-level info

    Nothing is written to the configuration: after a restart of the agent its `logLevel` is in force again.

    Exit status: 0 it is shown or changed, 2 there is no agent to ask.
    """
    if seconds is not None and level is None:
        raise click.UsageError("--for needs a level, such as `windlass log-level debug --for 10m`.")
    asked = {} if level is None else {"level": level}
    if seconds is not None:
        asked["seconds"] = str(seconds)
    try:
        where = answers.socket_of(socket, config)
        content = answers.ask(where, "/v1/log-level", asked, "PUT" if level else "GET")
    except answers.NoAnswer as error:
        answers.fail("log-level", error)
        return
    click.echo(sentence(json.decode(content, type=Answer)))


def sentence(answer: Answer) -> str:
    if answer.seconds_left is not None:
        minutes, seconds = divmod(round(answer.seconds_left), 60)
        return f"{answer.level}, for another {minutes} min {seconds} s; then {answer.configured}"
    if answer.level != answer.configured:
        return f"{answer.level}, until the agent restarts; then {answer.configured}"
    return answer.level
