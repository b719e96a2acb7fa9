"""The preflight checks of this Node: facts about its host and its switch, and what follows from them.

Before the NIC is taken for the first time, an error stops that. Later, findings are only reported.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from windlass.agent.limits import connection_limit
from windlass.host.preflight import ConntrackUse, Facts, Finding, Intent, Severity, findings
from windlass.host.protocol import Host, HostError
from windlass.model.nodes import TrafficMode
from windlass.nodes.config import Config
from windlass.switch.bridge_differences import interfaces_with
from windlass.switch.bridge_specs import ROLE, Role
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.rows import View
from windlass.switch.streams import SwitchUnreachableError


def intent(config: Config) -> Intent:
    return Intent(
        bridge=config.bridge,
        gateway=config.gateway,
        tunnel=None if config.traffic_mode is TrafficMode.NO_ENCAP else config.tunnel_type,
        userspace=config.is_userspace,
        mtu=config.mtu or None,
        connections=connection_limit(config),
        reserves_ports=config.reserves_ports,
    )


async def checked(config: Config, host: Host, uplink: str, view: View) -> tuple[Finding, ...]:
    """All findings now. HostError if the NIC has not been taken yet and must not be."""
    try:
        facts = with_switch(await host.facts(config.bridge, uplink), config, view)
    except HostError as error:
        remedy = "Run `windlass preflight` on the Node; the agent goes on without these checks."
        return (Finding(Severity.WARNING, "preflight", f"The host could not be checked: {error}", remedy),)
    if config.is_userspace:
        facts = replace(facts, switch_connections=await switch_connections(config))
    found = findings(facts, intent(config))
    errors = [str(finding) for finding in found if finding.severity is Severity.ERROR]
    if errors and not facts.adopted:
        raise HostError(f"{uplink} is left as it is: {' '.join(errors)}")
    return found


def with_switch(facts: Facts, config: Config, view: View) -> Facts:
    """The facts, with those from the switch's database."""
    ports = view.interfaces_of(config.bridge)
    ours = any(ROLE in port.external_ids for port in ports)
    foreign = () if ours else tuple(sorted(port.name for port in ports if port.name != config.bridge))
    adopted = any(port.name == facts.uplink for port in interfaces_with(view, config.bridge, Role.UPLINK))
    return replace(facts, adopted=adopted, foreign_ports=foreign)


async def switch_connections(config: Config) -> ConntrackUse | None:
    """The conntrack table of the userspace datapath; None where ovs-vswitchd does not say."""
    with suppress(SwitchRefusedError, SwitchUnreachableError, ValueError):
        socket = control_socket(config.ovs_run_directory)
        limit = int(await ask(socket, "dpctl/ct-get-maxconns"))
        return ConntrackUse(limit, int(await ask(socket, "dpctl/ct-get-nconns")))
    return None
