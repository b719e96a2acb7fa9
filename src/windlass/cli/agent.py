"""`windlass agent`: the process on a Node, from its configuration to an orderly stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from windlass.agent.agents import run
from windlass.agent.cluster_writers import ClusterWriter
from windlass.agent.logs import Logs
from windlass.cluster.kubernetes.credentials import reader
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.manifests import Manifests
from windlass.cluster.sources import ClusterSource
from windlass.host.linux.hosts import LinuxHost
from windlass.nodes.config import Config, ConfigError, load


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    default=Path("/etc/windlass/windlass.yaml"),
    show_default=True,
    help="The configuration, a YAML file; docs/configuration.md lists every option.",
)
def agent(file: Path) -> None:
    """Run on a Node, in the foreground, until SIGTERM or SIGINT.

    Stopping it changes nothing: the Node goes on forwarding with the flows it holds, and the next start sends only what
    has changed meanwhile.
    """
    try:
        config = load(file)
    except ConfigError as error:
        click.echo(f"windlass agent: {error}", err=True)
        sys.exit(2)
    logs = Logs(config.log_format, config.log_level)
    try:
        asyncio.run(_until_told(config, logs))
    except OSError as error:
        click.echo(f"windlass agent: {error}", err=True)
        sys.exit(1)


async def _until_told(config: Config, logs: Logs) -> None:
    host = LinuxHost(Path(config.state_directory))
    work = asyncio.create_task(run(config, logs, host, *_source(config)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with suppress(asyncio.CancelledError):
        await work
    await host.close()


def _source(config: Config) -> tuple[ClusterSource, ClusterWriter | None]:
    if config.manifests:
        return Manifests(Path(config.manifests)), None
    access = reader(config.kubeconfig, config.api_server)
    return APIServer(access, config.node_name), ClusterWriter(access, config.node_name)
