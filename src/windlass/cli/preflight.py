"""`windlass preflight`: what would hurt if the agent took this Node's NIC, as a table. Reads only."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from windlass.agent.logs import Logs
from windlass.agent.preflights import intent, switch_connections, with_switch
from windlass.cli.answers import coloured
from windlass.host.linux.hosts import LinuxHost
from windlass.host.preflight import CHECKS, Facts, Finding, Severity, findings
from windlass.host.protocol import HostError
from windlass.nodes.config import Config, ConfigError, LogFormat, LogLevel, load, parse
from windlass.switch.ovsdb import open_database
from windlass.switch.streams import SwitchUnreachableError

DEFAULT_CONFIG = Path("/etc/windlass/windlass.yaml")
UNUSABLE = 2  # exit status: bad usage, bad configuration, no NIC
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help=f"The agent's configuration.  [default: {DEFAULT_CONFIG} if it is there, else the defaults of every option]",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def preflight(file: Path | None, as_json: bool) -> None:
    """What would hurt if Windlass took this Node's NIC? Run it on a Node before you install, and whenever you doubt.

    It changes nothing, and needs neither a cluster nor Open vSwitch. The agent makes the same checks before it takes
    the NIC, and afterwards with every audit (each minute); `windlass status` shows what it found.

    \b
    uplink         is the NIC an Ethernet interface with a carrier, and of no bond or bridge? NetworkManager?
    MTU            does a Pod's packet fit into the tunnel?
    local ports    does ip_local_port_range overlap the ports that SNAT uses?
    forwarding     does a firewall chain drop forwarded packets by its policy?
    conntrack      are the tables of connections large enough?
    kernel         are openvswitch, the tunnel and nftables there?
    other network  are there interfaces or a bridge of Antrea, Cilium, Calico, flannel, ...?
    CNI            is there another network configuration that the runtime prefers?
    kube-proxy     does it run, or has it left its rules?

    \b
    error    taking the NIC would break this Node's network: the agent refuses to.
    warning  something will not work; the agent goes on.

    Exit status: 0 nothing would hurt, 1 something would, 2 it could not be checked.
    """
    Logs(LogFormat.TEXT, LogLevel.ERROR)
    try:
        config = _config(file)
        facts = asyncio.run(_gathered(config))
    except (ConfigError, HostError) as error:
        click.echo(f"windlass preflight: {error}", err=True)
        sys.exit(UNUSABLE)
    found = findings(facts, intent(config))
    if as_json:
        answer = {"uplink": facts.uplink, "adopted": facts.adopted, "findings": found}
        click.echo(msgspec.json.format(msgspec.json.encode(answer)))
    else:
        for line in lines(facts, config, found):
            click.echo(line, color=None if coloured() else False)
    sys.exit(1 if found else 0)


def lines(facts: Facts, config: Config, found: Sequence[Finding]) -> Iterator[str]:
    addresses = ", ".join(map(str, facts.addresses)) or "no address"
    what = "is" if facts.adopted else "would become"
    yield f"{click.style(facts.uplink, bold=True)} ({addresses}, MTU {facts.mtu}) {what} the uplink of {config.bridge}."
    yield ""
    if not found:
        yield f"{click.style('Nothing would hurt', fg='green')}: all {len(CHECKS)} checks passed."
        return
    margin = max(len(finding.check) for finding in found) + 11
    width = max(shutil.get_terminal_size((120, 24)).columns, margin + 40)
    for finding in found:
        severity = click.style(finding.severity.value.ljust(7), fg=_COLOURS[finding.severity], bold=True)
        body = [*textwrap.wrap(f"{finding.what}.", width - margin), *textwrap.wrap(finding.remedy, width - margin)]
        yield f"{severity}  {finding.check.ljust(margin - 11)}  {body[0]}"
        yield from (" " * margin + line for line in body[1:])
        yield ""
    yield _summary(facts, found)


def _summary(facts: Facts, found: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in found)
    counted = ", ".join(
        f"{counts[severity]} {severity.value}{'s' if counts[severity] > 1 else ''}"
        for severity in Severity
        if counts[severity]
    )
    if facts.adopted:
        return f"{counted}. The agent has taken {facts.uplink} already, and keeps it."
    does = "does not take" if counts[Severity.ERROR] else "takes"
    return f"{counted}. With these the agent {does} {facts.uplink}."


def _config(file: Path | None) -> Config:
    if file is None and not DEFAULT_CONFIG.exists():
        return parse(b"", "defaults")
    return load(file or DEFAULT_CONFIG)


async def _gathered(config: Config) -> Facts:
    if os.geteuid() != 0:
        raise HostError("only root may see firewall chains; try again as root")
    host = LinuxHost(Path(config.state_directory))
    try:
        facts = await host.facts(config.bridge, config.uplink or None)
    finally:
        await host.close()
    # Open vSwitch may come with the installation: without it there is nothing to add.
    with suppress(SwitchUnreachableError):
        async with open_database(str(config.ovsdb_socket)) as database:
            facts = with_switch(facts, config, database.view)
    if config.is_userspace:
        facts = replace(facts, switch_connections=await switch_connections(config))
    return facts
