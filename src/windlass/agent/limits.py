"""How many connections the Node tracks, and for how long: by the same rules as kube-proxy.

The kernel tracks the host's own connections, and on the kernel datapath those of Pods. In user space Open vSwitch has a
table of its own, whose timeouts are not set here.
"""

from __future__ import annotations

import os
from contextlib import suppress

from windlass.host.plans import ConntrackParameter, ConntrackSetting, HostPlan
from windlass.nodes.config import Config
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError


def connection_limit(config: Config, cpus: int | None = None) -> int:
    """Returns 0 if the limit should stay as it is."""
    if not config.conntrack_max_per_core:
        return 0
    return max(config.conntrack_min, config.conntrack_max_per_core * (cpus or os.cpu_count() or 1))


def host_plan(config: Config) -> HostPlan:
    wanted = {
        ConntrackParameter.LIMIT: connection_limit(config),
        ConntrackParameter.TCP_ESTABLISHED: config.conntrack_tcp_established_seconds,
        ConntrackParameter.TCP_CLOSE_WAIT: config.conntrack_tcp_close_wait_seconds,
        ConntrackParameter.UDP: config.conntrack_udp_seconds,
        ConntrackParameter.UDP_STREAM: config.conntrack_udp_stream_seconds,
    }
    return HostPlan(tracking=frozenset(ConntrackSetting(what, value) for what, value in wanted.items() if value))


def zone_timeouts(config: Config) -> dict[str, int]:
    """The same timeouts, as Open vSwitch names them, for a conntrack zone of the kernel that has a policy of its own.

    In such a zone Open vSwitch sets all timeouts, those that the policy does not name to its own defaults.
    """
    if config.is_userspace:
        return {}
    wanted = {
        "tcp_established": config.conntrack_tcp_established_seconds,
        "tcp_close_wait": config.conntrack_tcp_close_wait_seconds,
        "udp_single": config.conntrack_udp_seconds,
        "udp_multiple": config.conntrack_udp_stream_seconds,
    }
    return {name: value for name, value in wanted.items() if value}


async def raise_switch_limit(config: Config) -> None:
    """Raise the limit of the userspace datapath, too. A limit that stays too low is a finding of `preflights`."""
    wanted = connection_limit(config)
    with suppress(SwitchRefusedError, SwitchUnreachableError, ValueError):
        socket = control_socket(config.ovs_run_directory)
        if wanted and int(await ask(socket, "dpctl/ct-get-maxconns")) < wanted:
            await ask(socket, "dpctl/ct-set-maxconns", str(wanted))
