"""`windlass release`: puts addresses, routes and NIC of this Node back as they were, and leaves nothing of Windlass."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from windlass.agent.logs import Logs
from windlass.agent.releases import AgentRunsError, hand_over, without_agent
from windlass.agent.releases import release as give_back
from windlass.cli.install_cni import BINARIES, CONFIGURATIONS, NotInstalled, uninstall
from windlass.host.linux.hosts import LinuxHost
from windlass.host.protocol import HostError
from windlass.nodes.config import Config, ConfigError, LogFormat, LogLevel, load
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

UNUSABLE = 2  # exit status


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    default=Path("/etc/windlass/windlass.yaml"),
    show_default=True,
    help="The agent's configuration.",
)
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long an agent that still runs has to end.  [default: not at all]",
)
@click.option(
    "--nic-only",
    is_flag=True,
    help="For the end of Open vSwitch: wait until ovs-vswitchd has ended, and give the host its NIC while nothing else "
    "forwards. Bridge, Pods and files stay, and the agent takes the NIC again when the switch is back.",
)
@BINARIES
@CONFIGURATIONS
def release(file: Path, seconds: float, nic_only: bool, binaries: Path, configurations: Path) -> None:
    """Give this Node's NIC back: the Node becomes what it was before Windlass. It answers at its address throughout.

    Addresses and routes move from the bridge interface to the NIC. The bridge is deleted with gateway, tunnel and Pods'
    ports; routes, rules, nftables, traffic control filters, the CNI plugin with its configuration, and all files of
    Windlass are removed; sysctls and offloads get their former values. Pods lose their network: drain the Node first.

    The agent must not run. Open vSwitch should, but need not. Repeat it whenever it was interrupted or something was in
    the way; on a Node without Windlass it does nothing.

    Exit status: 0 nothing of Windlass is left, 1 something is (it says what, and why), 2 nothing was done.
    """
    Logs(LogFormat.TEXT, LogLevel.ERROR)
    try:
        config = load(file)
        if nic_only:
            problems = asyncio.run(_handed_over(config))
        else:
            problems = asyncio.run(_released(config, seconds, binaries, configurations))
    except (ConfigError, AgentRunsError) as error:
        click.echo(f"windlass release: {error}", err=True)
        sys.exit(UNUSABLE)
    except (HostError, NotInstalled, SwitchRefusedError, SwitchUnreachableError, OSError) as error:
        problems = [f"{error}; run it again when that is mended: the Node goes on with what it has"]
    for problem in problems:
        click.echo(f"windlass release: {problem}", err=True)
    sys.exit(1 if problems else 0)


async def _released(config: Config, seconds: float, binaries: Path, configurations: Path) -> list[str]:
    async with without_agent(config, seconds):
        for sentence in uninstall(binaries, configurations):
            click.echo(sentence)
        host = LinuxHost(Path(config.state_directory))
        try:
            return await give_back(config, host, click.echo)
        finally:
            await host.close()


async def _handed_over(config: Config) -> list[str]:
    host = LinuxHost(Path(config.state_directory))
    try:
        await hand_over(config, host, click.echo)
    finally:
        await host.close()
    return []
