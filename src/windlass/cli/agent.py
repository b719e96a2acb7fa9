"""`windlass agent`: runs the agent, from its configuration to an orderly stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from windlass.agent.agents import run
from windlass.agent.cluster_writers import ClusterWriter
from windlass.agent.logs import Logs
from windlass.cli.node_commands import CONFIG, opened_host
from windlass.cli.outputs import fail
from windlass.cli.stop_requests import stop_requests
from windlass.cluster import lastgood
from windlass.cluster.kubernetes.credentials import reader
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.manifests import Manifests
from windlass.cluster.sources import ClusterSource
from windlass.nodes.config import Config, ConfigError, load


@click.command()
@CONFIG
def agent(file: Path) -> None:
    """Run the agent of a Node in the foreground, until SIGTERM or SIGINT (on Windows: a console event).

    The Node keeps forwarding when the agent stops. The next start changes only flows that differ.

    Exit status: 0 stopped by a signal, 1 a socket or file cannot be used, 2 the configuration cannot be used.
    """
    try:
        config = load(file)
    except ConfigError as error:
        fail("agent", error)
    logs = Logs(config.log_format, config.log_level)
    try:
        asyncio.run(_run_until_signal(config, logs))
    except OSError as error:
        fail("agent", error, status=1)


async def _run_until_signal(config: Config, logs: Logs) -> None:
    async with opened_host(config) as host:
        work = asyncio.create_task(run(config, logs, host, *_source(config)))
        with stop_requests(work.cancel), suppress(asyncio.CancelledError):
            await work


def _source(config: Config) -> tuple[ClusterSource, ClusterWriter | None]:
    if config.manifests:
        return Manifests(Path(config.manifests)), None
    access = reader(config.kubeconfig, config.api_server)
    last_good = partial(lastgood.load, Path(config.state_directory))
    return APIServer(access, config.node_name, last_good=last_good), ClusterWriter(access, config.node_name)
