"""What commands print and write: errors, colours, the format of flows, and paths that are checked before the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import click

UNUSABLE = 2  # exit status: nothing was done

FLOW_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["symbolic", "ofctl", "json"]),
    default="symbolic",
    show_default=True,
    help="symbolic: names instead of numbers; ofctl: the input format of ovs-ofctl; json: both, with owner and why.",
)


class _File(click.Path):
    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(str(super().convert(value, parameter, context)))  # type: ignore[arg-type]  # click's own is Any
        if not path.parent.is_dir():
            self.fail(f"the directory {path.parent} does not exist; create it first.", parameter, context)
        return path


FILE = _File(dir_okay=False, writable=True)
FOLDER = click.Path(file_okay=False, writable=True, path_type=Path)


def fail(command: str, error: object, status: int = UNUSABLE) -> NoReturn:
    """Print the error after the name of the command, and exit."""
    click.echo(f"windlass {command}: {error}", err=True)
    sys.exit(status)


def show(lines: Iterable[str]) -> None:
    """Print the lines, in colours only on a terminal. See no-color.org."""
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        click.echo(line, color=None if has_colours else False)
