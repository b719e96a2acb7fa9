"""Keeps the marks of open connections in line with policies; `pipeline.denied_connections` decides.

The work grows with the number of tracked connections. So it is done only after changes of policies or labels, and after
other changes only while connections are denied. No change waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import NoReturn

from windlass.agent.areas import Area, Report
from windlass.agent.policing import Policing
from windlass.agent.switching import ProgrammedSwitch
from windlass.model.nodes import NodeState
from windlass.model.services import Protocol
from windlass.nodes.config import Config
from windlass.openflow.conntrack_dumps import TrackedConnection
from windlass.openflow.fields import LOCAL_PORT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.denied_connections import JudgedConnection, is_marked, judge, marking, to_review
from windlass.pipeline.tracking import POD_ZONE
from windlass.switch.controls import ask, control_socket
from windlass.switch.datagrams import empty_datagram, empty_segment
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

PAUSE = 1.0  # seconds between two reviews
_SHARE = 0.05  # the largest share of the time for reviews, if there are very many connections
_LONGEST_PAUSE = 20.0  # also after a switch that did not answer in time
_SLICE = 5  # connections before other tasks run; the lookup of an IPv6 address outside takes a millisecond
_NOT_REVIEWED = (
    "replies to UDP clients that send nothing may still pass although policies deny them, and the agent tries again"
)


class OpenConnections:
    def __init__(self, config: Config, switch: ProgrammedSwitch, policing: Policing, report: Report) -> None:
        self._config = config
        self._switch = switch
        self._policing = policing
        self._report = report
        self._some_denied = False  # by the last review

    async def review(self) -> NoReturn:
        """After each change that may concern open connections, once its flows are in the switch.

        While connections are denied, that is every change: a peer that becomes known may be theirs.
        """
        while True:
            await self._switch.policies_sent.wait()
            self._switch.policies_sent.clear()
            state = self._switch.state
            if state is None or self._switch.owes_policies:
                continue
            if not self._policing.take_review() and not self._some_denied:
                continue
            began = time.monotonic()
            if datapath_of(state.node).tracks_again:
                await self._try_review(state)
            await asyncio.sleep(pause_after(time.monotonic() - began))

    async def _try_review(self, state: NodeState) -> None:
        try:
            await self._review(state)
        except (SwitchRefusedError, SwitchUnreachableError) as error:
            self._report(Area.OPEN_CONNECTIONS, [f"{error}; {_NOT_REVIEWED}"])
            self._policing.request_review()
            self._switch.policies_sent.set()
        else:
            self._report(Area.OPEN_CONNECTIONS, ())

    async def _review(self, state: NodeState) -> None:
        socket = control_socket(self._config.ovs_run_directory)
        datapath = "netdev@ovs-netdev" if self._config.is_userspace else "system@ovs-system"
        dump = await ask(socket, "dpctl/dump-conntrack", datapath, f"zone={POD_ZONE}")
        judged = await relevant(judge(state, to_review(dump)))
        some_denied = False
        while judged:
            newest = self._switch.state
            if newest is not None and newest.policies is not state.policies:  # since the connections were listed
                state, judged = newest, await relevant(judge(newest, [one for one, _ in judged]))
                continue
            these, judged = judged[:_SLICE], judged[_SLICE:]
            some_denied |= any(denied for _, denied in these)
            for one, denied in these:
                await self._correct(one, denied)
            await asyncio.sleep(0)
        if self._switch.trouble:  # the packets may be lost
            raise SwitchUnreachableError(self._switch.trouble)
        self._some_denied = some_denied

    async def _correct(self, one: TrackedConnection, denied: bool) -> None:
        if denied != is_marked(one):
            empty = empty_segment if one.protocol is Protocol.TCP else empty_datagram
            packet = empty(one.client, one.client_port, one.to, one.to_port)
            await self._switch.requests.packet_out(packet, LOCAL_PORT, marking(one, denied=denied))


def pause_after(spent: float) -> float:
    """Seconds until the next review, after one that took so long."""
    return min(max(PAUSE, spent / _SHARE), _LONGEST_PAUSE)


async def relevant(judged: Iterator[JudgedConnection]) -> list[JudgedConnection]:
    """The connections that are denied or marked: nearly always few.

    Not by `run_in_slices`, which does the rest at once when it is cancelled: the agent would end much later.
    """
    found: list[JudgedConnection] = []
    for number, (one, denied) in enumerate(judged, start=1):
        if denied or is_marked(one):
            found.append((one, denied))
        if not number % _SLICE:
            await asyncio.sleep(0)
    return found
