"""What the commands for a Node share: the option for the configuration, and the host of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from windlass.host.linux.hosts import LinuxHost
from windlass.host.protocol import Host
from windlass.nodes.config import Config
from windlass.places import HERE

DEFAULT_CONFIG = Path(HERE.config)

CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    help="The agent's configuration, a YAML file; docs/configuration.md lists every option.",
)


@asynccontextmanager
async def opened_host(config: Config) -> AsyncIterator[Host]:
    host = LinuxHost(Path(config.state_directory))
    try:
        yield host
    finally:
        await host.close()
