"""The floor of one change: its message, encoded beforehand, over a plain socket, until the switch confirms it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from windlass.bench import metronomes
from windlass.lab.sandbox.labs import LabError
from windlass.openflow.flows import Flow, Group
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.openflow.wire import messages as wire

_READ = 65536
_PATIENCE = 10.0  # seconds


def messages(groups: Iterable[Group], count: int) -> list[bytes]:
    """The messages that change one endpoint in each of that many groups."""
    encoded = (group_wire.encode(group) for group in groups)
    return [group_wire.modify(one, 1) + wire.barrier_request(2) for one in islice(cycle(encoded), count)]


def flow_messages(flows: Iterable[Flow], count: int) -> list[bytes]:
    """The messages that add that many flows, one each."""
    encoded = (flow_wire.encode(flow) for flow in flows)
    return [flow_wire.add(one, 1) + wire.barrier_request(2) for one in islice(cycle(encoded), count)]


def together(path: str, flows: Iterable[Flow]) -> float:
    """Seconds until the switch confirms all of these flows, sent at once."""
    messages = [flow_wire.add(flow_wire.encode(flow), 1) for flow in flows]
    content = b"".join((*messages, wire.barrier_request(2)))
    with connected(path) as switch:
        return _milliseconds(switch, content, time.perf_counter()) / 1000


def alone(path: str, changes: Sequence[bytes]) -> list[float]:
    """Milliseconds of each, sent one after the other."""
    with connected(path) as switch:
        return [_milliseconds(switch, change, time.perf_counter()) for change in changes]


def apart(path: str, changes: Sequence[bytes], gap: float) -> list[float]:
    """Milliseconds of each since its time to be sent, also if the one before was not confirmed by then."""
    command = metronomes.command(len(changes), gap)
    ticks, theirs = os.pipe()
    with connected(path) as switch, os.fdopen(ticks), subprocess.Popen(command, stdout=theirs):
        os.close(theirs)
        ticking = (when for came in iter(lambda: metronomes.read(ticks), []) for when in came)
        return [_milliseconds(switch, change, when) for change, when in zip(changes, ticking, strict=True)]


def _milliseconds(switch: socket.socket, change: bytes, began: float) -> float:
    switch.sendall(change)
    _await(switch, wire.Type.BARRIER_REPLY)
    return 1000 * (time.perf_counter() - began)


@contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    """An OpenFlow connection to the switch."""
    with socket.socket(socket.AF_UNIX) as switch:
        switch.settimeout(_PATIENCE)
        switch.connect(path)
        switch.sendall(wire.hello(1))
        _await(switch, wire.Type.HELLO)
        yield switch


def _await(switch: socket.socket, wanted: wire.Type) -> None:
    """The switch sends nothing else on this connection but errors."""
    header = wire.parse_header(switch.recv(_READ), 0)
    if header.type != wanted:
        raise LabError(f"the figures are invalid: the switch answered with a message of type {header.type}")
