"""The bridge of the tests of the wire form, and a blocking connection to it that only carries messages."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from switches import Switch
from windlass.openflow.wire import bundles, errors, flows, groups, matches, messages, meters
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import EncodedFlow
from windlass.openflow.wire.groups import EncodedGroup
from windlass.openflow.wire.messages import Header, Type
from windlass.openflow.wire.meters import EncodedMeter

T = TypeVar("T")


@dataclass
class Bridge:
    path: Path
    switch: Switch
    do: Callable[[Coroutine[None, None, T]], T]

    def ofctl(self, command: str, *arguments: str) -> str:
        return self.do(self.switch.ofctl(command, f"unix:{self.path}", *arguments))


class Channel:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._unread = b""
        self._xids = itertools.count(1)
        self.send(messages.hello(self.xid()))
        header, body = self.receive()
        assert messages.VERSION in messages.versions(header, body)

    def close(self) -> None:
        self._socket.close()

    def xid(self) -> int:
        return next(self._xids)

    def send(self, *data: bytes) -> None:
        self._socket.sendall(b"".join(data))

    def receive(self) -> tuple[Header, bytes]:
        """The next message other than echoes."""
        while True:
            self._want(messages.HEADER_SIZE)
            header = messages.parse_header(self._unread)
            self._want(header.length)
            body = self._unread[messages.HEADER_SIZE : header.length]
            self._unread = self._unread[header.length :]
            if header.type != Type.ECHO_REQUEST:
                return header, body
            self.send(messages.echo_reply(header.xid, body))

    def await_type(self, kind: Type) -> tuple[Header, bytes]:
        return next(message for message in iter(self.receive, None) if message[0].type == kind)

    def errors(self, *data: bytes) -> list[OpenFlowError]:
        """The errors of the switch about these messages, after a barrier."""
        self.send(*data, messages.barrier_request(self.xid()))
        found = []
        while True:
            header, body = self.receive()
            if header.type == Type.BARRIER_REPLY:
                return found
            if header.type == Type.ERROR:
                found.append(errors.parse_error(body))

    def accepts(self, *data: bytes) -> None:
        refused = self.errors(*data)
        assert not refused, refused

    def commit(self, bundle: int, *parts: bytes) -> list[OpenFlowError]:
        """The errors of the switch about the bundle of these messages."""
        return self.errors(
            bundles.open_(bundle, self.xid()),
            *(bundles.add(bundle, part) for part in parts),
            bundles.commit(bundle, self.xid()),
        )

    def empty(self) -> None:
        any_flow = struct.pack("!QQBBHHHIIIHH", 0, 0, 0xFF, 3, 0, 0, 0, *(0xFFFFFFFF,) * 3, 0, 0) + matches.structure(
            b""
        )
        delete_flows = messages.message(Type.FLOW_MOD, self.xid(), any_flow)
        self.accepts(delete_flows, groups.delete(groups.ALL_GROUPS, self.xid()))
        self.accepts(*(meters.delete(meter, self.xid()) for meter in self.meters()))

    def flows(self) -> set[EncodedFlow]:
        return set(self._dump(flows.dump_request, flows.dumped))

    def groups(self) -> set[EncodedGroup]:
        return set(self._dump(groups.dump_request, groups.dumped))

    def meters(self) -> set[EncodedMeter]:
        return set(self._dump(meters.dump_request, meters.dumped))

    def _dump(self, request: Callable[[int], bytes], dumped: Callable[[bytes], Iterable[T]]) -> Iterator[T]:
        xid = self.xid()
        self.send(request(xid))
        while True:
            header, body = self.await_type(Type.MULTIPART_REPLY)
            assert header.xid == xid
            part = messages.parse_multipart(body)
            yield from dumped(part.body)
            if not part.more:
                return

    def _want(self, size: int) -> None:
        while len(self._unread) < size:
            data = self._socket.recv(1 << 20)
            assert data, "the switch closed the connection"
            self._unread += data
