"""`windlass preflight`: checks whether this Node is ready for Windlass. Reads only."""

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
from windlass.cli.node_commands import DEFAULT_CONFIG, opened_host
from windlass.cli.outputs import fail, show
from windlass.host.preflight import CHECKS, Facts, Finding, Severity, findings
from windlass.host.protocol import HostError
from windlass.nodes.config import Config, ConfigError, LogFormat, LogLevel, load, parse
from windlass.switch.ovsdb import open_database
from windlass.switch.streams import SwitchUnreachableError

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help=f"The agent's configuration.  [default: {DEFAULT_CONFIG} if it exists, else the default of every option]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def preflight(file: Path | None, as_json: bool) -> None:
    """Check whether this Node is ready for Windlass. Run it before you install, and when you troubleshoot.

    The command changes nothing, and needs neither a cluster nor Open vSwitch. The agent makes the same checks before it
    takes the NIC, and then once a minute; `windlass status` shows its findings.

    \b
    uplink         the NIC is Ethernet, has a carrier, is in no bond or bridge
    MTU            a packet of a Pod fits into the tunnel
    local ports    ip_local_port_range does not overlap the ports for SNAT
    forwarding     no firewall chain drops forwarded packets by its policy
    conntrack      the conntrack tables are large enough
    kernel         the modules for Open vSwitch, the tunnel and nftables exist
    other network  no interfaces or bridge of Antrea, Cilium, Calico, flannel, ...
    CNI            the container runtime prefers no other network configuration
    kube-proxy     kube-proxy does not run, and has left no rules

    \b
    error    taking the NIC would break the network of this Node; the agent does not take it
    warning  something else will not work; the agent still takes the NIC

    Exit status: 0 no findings, 1 findings, 2 the Node could not be checked.
    """
    Logs(LogFormat.TEXT, LogLevel.ERROR)
    try:
        config = _config(file)
        facts = asyncio.run(_gathered(config))
    except (ConfigError, HostError) as error:
        fail("preflight", error)
    found = findings(facts, intent(config))
    if as_json:
        answer = {"uplink": facts.uplink, "adopted": facts.adopted, "findings": found}
        click.echo(msgspec.json.format(msgspec.json.encode(answer)))
    else:
        show(lines(facts, config, found))
    sys.exit(1 if found else 0)


def lines(facts: Facts, config: Config, found: Sequence[Finding]) -> Iterator[str]:
    addresses = ", ".join(map(str, facts.addresses)) or "no address"
    what = "is" if facts.adopted else "would become"
    yield f"{click.style(facts.uplink, bold=True)} ({addresses}, MTU {facts.mtu}) {what} the uplink of {config.bridge}."
    yield ""
    if not found:
        yield f"{click.style('Ready for Windlass', fg='green')}: all {len(CHECKS)} checks passed."
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
        return f"{counted}. The agent has already taken {facts.uplink} and keeps it."
    does = "will not take" if counts[Severity.ERROR] else "will still take"
    return f"{counted}. The agent {does} {facts.uplink}."


def _config(file: Path | None) -> Config:
    if file is None and not DEFAULT_CONFIG.exists():
        return parse(b"", "defaults")
    return load(file or DEFAULT_CONFIG)


async def _gathered(config: Config) -> Facts:
    if os.geteuid() != 0:
        raise HostError("only root can read firewall chains; run it again as root")
    async with opened_host(config) as host:
        facts = await host.facts(config.bridge, config.uplink or None)
    # Open vSwitch may not be installed yet.
    with suppress(SwitchUnreachableError):
        async with open_database(str(config.ovsdb_socket)) as database:
            facts = with_switch(facts, config, database.view)
    if config.is_userspace:
        facts = replace(facts, switch_connections=await switch_connections(config))
    return facts
