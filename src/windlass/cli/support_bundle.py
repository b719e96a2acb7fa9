"""`windlass support-bundle`: one redacted file with what is needed to find out what is wrong with this Node."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from windlass import files
from windlass.cli import answers
from windlass.nodes.config import Config, ConfigError, load
from windlass.support.bundles import Collected, collect, packed, summary
from windlass.support.parts import parts
from windlass.support.sources import Unavailable

DEFAULT_CONFIG = Path("/etc/windlass/windlass.yaml")
STANDARD_OUTPUT = "-"
NOT_WRITTEN = 1  # exit status
_ANSWER_SECONDS = 8.0  # of the agent


@click.command("support-bundle")
@click.option(
    "--output",
    help="Where to write it; - is standard output.  [default: windlass-NODE-TIME.tar.gz in this folder]",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    help="The agent's configuration, which says where everything is; where it cannot be read, the defaults are used.",
)
@click.option("--socket", type=click.Path(path_type=Path), help="The agent's socket, if it is not in runDirectory.")
def support_bundle(output: str | None, file: Path, socket: Path | None) -> None:
    """Write one file (tar.gz) about this Node for those who help you, and say what is in it and what is not.

    \b
    windlass support-bundle
    windlass support-bundle --output - | ssh somewhere 'cat > bundle.tar.gz'

    It only reads. It works without an agent and without Open vSwitch, with what there is then. Secrets are left out;
    names and addresses of Nodes, Pods and Services are not. Look into it before you give it away.

    Exit status: 0 it is written, 1 it could not be.
    """
    config, complaint = _configuration(file)
    name = f"windlass-{config.node_name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"

    def ask(path: str, asked: Mapping[str, str]) -> bytes:
        try:
            return answers.ask(socket or config.api_socket, path, asked, seconds=_ANSWER_SECONDS)
        except answers.NoAnswer as error:
            raise Unavailable(str(error)) from None

    if complaint:
        click.echo(f"windlass support-bundle: {complaint}; the defaults are used", err=True)
    collected = asyncio.run(collect(parts(config, file, ask)))
    content = packed(name, collected, time.time())
    where = Path(output or f"{name}.tar.gz")
    try:
        _write(where, content, to_standard_output=output == STANDARD_OUTPUT)
    except OSError as error:
        click.echo(f"windlass support-bundle: {where}: cannot be written: {error.strerror}", err=True)
        sys.exit(NOT_WRITTEN)
    _tell(collected, "standard output" if output == STANDARD_OUTPUT else str(where.absolute()), len(content))


def _configuration(file: Path) -> tuple[Config, str]:
    """And why it is not that of the file, if so."""
    try:
        return load(file), ""
    except ConfigError as error:
        return Config(), str(error)


def _write(where: Path, content: bytes, *, to_standard_output: bool) -> None:
    if to_standard_output:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    where.parent.stat()  # fails for a mistyped directory, which must not be created
    files.write(where, content, mode=0o600, durable=False, writer=str(os.getpid()))


def _tell(collected: list[Collected], where: str, size: int) -> None:
    """On standard error, so that the bundle itself may go to standard output."""
    for line in summary(collected):
        click.echo(line, err=True)
    click.echo(f"\nThe bundle is in {where} ({size / 1024:,.0f} KiB).", err=True)
