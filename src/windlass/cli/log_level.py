"""`windlass log-level`: shows or changes the log level of the running agent."""

from __future__ import annotations

import re
from pathlib import Path

import click
from msgspec import Struct, json

from windlass.cli import agent_client
from windlass.cli.outputs import fail
from windlass.nodes.config import LogLevel

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class LogLevelAnswer(Struct, rename="camel"):
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
            self.fail(f"{value} is not a duration; examples: 30s, 10m, 1h30m, 1d.", parameter, context)
        return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhd])", str(value))))


@click.command("log-level")
@agent_client.options
@click.argument("level", required=False, type=click.Choice([level.value for level in LogLevel]))
@click.option(
    "--for",
    "seconds",
    type=_Duration(),
    help="Return to the configured level after this time, for example 10m.  [default: when the agent restarts]",
)
def log_level(socket: Path | None, config: Path | None, level: str | None, seconds: float | None) -> None:
    """Show the log level of the running agent, or change it.

    \b
    Examples:
      windlass log-level                    show the level
      windlass log-level debug --for 10m    log more for ten minutes
      windlass log-level info               return to the level info

    The configuration does not change: after a restart, the agent uses its `logLevel` again.

    Exit status: 0 shown or changed, 2 no agent answers.
    """
    if seconds is not None and level is None:
        raise click.UsageError("--for needs a level, such as `windlass log-level debug --for 10m`.")
    asked = {} if level is None else {"level": level}
    if seconds is not None:
        asked["seconds"] = str(seconds)
    try:
        where = agent_client.socket_of(socket, config)
        content = agent_client.ask(where, "/v1/log-level", asked, "PUT" if level else "GET")
    except agent_client.NoAnswer as error:
        fail("log-level", error)
    click.echo(sentence(json.decode(content, type=LogLevelAnswer)))


def sentence(answer: LogLevelAnswer) -> str:
    if answer.seconds_left is not None:
        minutes, seconds = divmod(round(answer.seconds_left), 60)
        return f"{answer.level}, for another {minutes} min {seconds} s; then {answer.configured}"
    if answer.level != answer.configured:
        return f"{answer.level}, until the agent restarts; then {answer.configured}"
    return answer.level
