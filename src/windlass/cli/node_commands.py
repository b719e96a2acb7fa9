"""What the commands for a Node share: the option for the configuration, and the host of this machine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click

from windlass.host.protocol import Host
from windlass.nodes.config import Config
from windlass.places import HERE

DEFAULT_CONFIG = Path(HERE.config)

config_option = partial(
    click.option, "--config", "file", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True
)
CONFIG = config_option(help="The agent's configuration, a YAML file; docs/configuration.md lists every option.")


@asynccontextmanager
async def opened_host(config: Config) -> AsyncIterator[Host]:
    host: Host = _host(Path(config.state_directory))
    try:
        yield host
    finally:
        await host.close()


def _host(state_directory: Path) -> Host:
    """The host of this operating system; the module of the other one cannot be imported here."""
    if sys.platform == "win32":
        from windlass.host.windows.hosts import WindowsHost  # noqa: PLC0415

        return WindowsHost(state_directory)
    from windlass.host.linux.hosts import LinuxHost  # noqa: PLC0415

    return LinuxHost(state_directory)
