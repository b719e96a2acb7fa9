"""`windlass release`: restores the network of this Node as it was before Windlass."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from windlass.agent.logs import Logs
from windlass.agent.releases import AgentRunsError, hand_over, without_agent
from windlass.agent.releases import release as give_back
from windlass.cli.install_cni import BINARIES, CONFIGURATIONS, NotInstalled, uninstall
from windlass.cli.node_commands import CONFIG, opened_host
from windlass.cli.outputs import fail
from windlass.host.protocol import HostError
from windlass.nodes.config import Config, ConfigError, LogFormat, LogLevel, load
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError


@click.command()
@CONFIG
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait this long for a running agent to stop.  [default: do not wait]",
)
@click.option(
    "--nic-only",
    is_flag=True,
    help="Only give the NIC back, after waiting for ovs-vswitchd to stop: for a shutdown of Open vSwitch. Bridge, Pods "
    "and files stay, and the agent takes the NIC again when the switch is back.",
)
@BINARIES
@CONFIGURATIONS
def release(file: Path, seconds: float, nic_only: bool, binaries: Path, configurations: Path) -> None:
    """Remove Windlass from this Node and give its NIC back. The Node stays reachable at its address.

    Addresses and routes move from the bridge interface to the NIC. The bridge is deleted together with the gateway, the
    tunnel and the ports of Pods. Routes, rules, the nftables table, traffic control filters, the CNI plugin with its
    configuration and all files of Windlass are removed; sysctls and offloads get their former values. Pods lose their
    network: drain the Node first.

    The agent must not be running. Open vSwitch may be stopped. The command can be repeated after an interruption or an
    error; on a Node without Windlass it does nothing.

    Exit status: 0 nothing of Windlass is left, 1 something is left (the errors say what, and why), 2 nothing was done.
    """
    Logs(LogFormat.TEXT, LogLevel.ERROR)
    try:
        config = load(file)
        if nic_only:
            problems = asyncio.run(_handed_over(config))
        else:
            problems = asyncio.run(_released(config, seconds, binaries, configurations))
    except (ConfigError, AgentRunsError) as error:
        fail("release", error)
    except (HostError, NotInstalled, SwitchRefusedError, SwitchUnreachableError, OSError) as error:
        problems = [f"{error}; fix that and run the command again; the Node keeps working with what it has"]
    for problem in problems:
        click.echo(f"windlass release: {problem}", err=True)
    sys.exit(1 if problems else 0)


async def _released(config: Config, seconds: float, binaries: Path, configurations: Path) -> list[str]:
    async with without_agent(config, seconds):
        for sentence in uninstall(binaries, configurations):
            click.echo(sentence)
        async with opened_host(config) as host:
            return await give_back(config, host, click.echo)


async def _handed_over(config: Config) -> list[str]:
    async with opened_host(config) as host:
        await hand_over(config, host, click.echo)
    return []
