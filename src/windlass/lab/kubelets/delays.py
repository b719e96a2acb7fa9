"""Delays packets to Pods, as a network with a longer way between them would.

A server may close a connection as soon as it has answered. In an emulated machine a client needs longer until its first
write than the server until then, and the write fails. By SCTP a server that has sent data ends the connection one round
trip later: a longer round trip gives the client the time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NoReturn

from pyroute2 import IPRoute, NetlinkError

from windlass.host.linux import namespaces
from windlass.lab.kubelets.clusters import KubeletCluster
from windlass.lab.scenarios.segments import UPLINK

DELAY = 0.05  # seconds
_SECONDS_BETWEEN_PODS = 0.5  # a new Pod is not delayed for this long
_ROOT = 0x10000  # the handle of a first queueing discipline


async def delay_packets_to_pods(cluster: KubeletCluster) -> NoReturn:
    while True:
        for machine in cluster.machines.values():
            await asyncio.to_thread(_delay, machine.namespace)
        await asyncio.sleep(_SECONDS_BETWEEN_PODS)


def _delay(namespace: str) -> None:
    with namespaces.entered(namespaces.path_of(namespace)), IPRoute() as route:
        for link in route.get_links(kind="veth"):
            if link.get_attr("IFLA_IFNAME") != UPLINK and link.get_attr("IFLA_QDISC") != "netem":
                with suppress(NetlinkError):  # the Pod is gone
                    route.tc("add", "netem", link["index"], _ROOT, delay=int(DELAY * 1e6))
