"""`windlass support-bundle`: writes the state of this Node into one file, without secrets."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from windlass import files
from windlass.cli import agent_client
from windlass.cli.node_commands import config_option
from windlass.cli.outputs import fail
from windlass.nodes.config import Config, ConfigError, load
from windlass.support.bundles import Collected, collect, packed, summary
from windlass.support.items import items
from windlass.support.sources import Unavailable

STANDARD_OUTPUT = "-"
_ANSWER_SECONDS = 8.0  # of the agent


@click.command("support-bundle")
@click.option(
    "--output", help="The file to write; - is standard output.  [default: windlass-NODE-TIME.tar.gz in this directory]"
)
@config_option(help="The agent's configuration. If it cannot be read, the defaults are used.")
@click.option("--socket", type=click.Path(path_type=Path), help="The agent's socket.  [default: in its runDirectory]")
def support_bundle(output: str | None, file: Path, socket: Path | None) -> None:
    """Write the state of this Node into one file (tar.gz) for support, and list what it contains.

    \b
    Examples:
      windlass support-bundle
      windlass support-bundle --output - | ssh somewhere 'cat > bundle.tar.gz'

    The command changes nothing, and works without an agent and without Open vSwitch. The bundle contains no secrets,
    but names and addresses of Nodes, Pods and Services. Look into the file before you pass it on.

    Exit status: 0 written, 1 the file cannot be written.
    """
    config, complaint = _configuration(file)
    name = f"windlass-{config.node_name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"

    def ask(path: str, asked: Mapping[str, str]) -> bytes:
        try:
            return agent_client.ask(socket or config.api_socket, path, asked, seconds=_ANSWER_SECONDS)
        except agent_client.NoAnswer as error:
            raise Unavailable(str(error)) from None

    if complaint:
        click.echo(f"windlass support-bundle: {complaint}; the defaults are used", err=True)
    collected = asyncio.run(collect(items(config, file, ask)))
    content = packed(name, collected, time.time())
    where = Path(output or f"{name}.tar.gz")
    try:
        _write(where, content, to_standard_output=output == STANDARD_OUTPUT)
    except OSError as error:
        fail("support-bundle", f"{where}: cannot be written: {error.strerror}", status=1)
    _print_summary(collected, "standard output" if output == STANDARD_OUTPUT else str(where.absolute()), len(content))


def _configuration(file: Path) -> tuple[Config, str]:
    """The configuration; with the error if the defaults are used instead of the file."""
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


def _print_summary(collected: list[Collected], where: str, size: int) -> None:
    """On standard error: standard output may be the bundle."""
    for line in summary(collected):
        click.echo(line, err=True)
    click.echo(f"\nThe bundle is in {where} ({size / 1024:,.0f} KiB).", err=True)
