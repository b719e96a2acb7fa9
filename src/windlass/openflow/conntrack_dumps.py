"""Connections in the output of `ovs-appctl dpctl/dump-conntrack`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from windlass.model.services import Protocol

_ENTRY = (
    r",orig=\(src=([0-9a-f.:]+),dst=([0-9a-f.:]+),sport=(\d+),dport=(\d+)\)"
    r",reply=\(src=([0-9a-f.:]+),dst=([0-9a-f.:]+),sport=(\d+),dport=(\d+)\)"
    r"(?:,zone=\d+)?(?:,mark=(\d+))?"
)
# Without `^`: a pattern that begins with a text skips a hundred thousand other entries in milliseconds.
_UDP = re.compile("udp" + _ENTRY)
_TCP = re.compile("tcp" + _ENTRY + r"(?:,labels=\w+)?,protoinfo=\(state=ESTABLISHED\b")


class TrackedConnection(Struct, frozen=True, gc=False):
    """Addresses are texts: most of them are only compared."""

    client: str
    client_port: int
    to: str  # the address to which the client sends: the server's, or that of a Service
    to_port: int
    server: str
    server_port: int
    seen_as: str  # the client's address as the server sees it: another one if the source is translated
    seen_port: int
    mark: int
    protocol: Protocol = Protocol.UDP


def udp_connections(dump: str) -> Iterator[TrackedConnection]:
    return (_connection(found, Protocol.UDP) for found in _UDP.finditer(dump))


def tcp_connections(dump: str, flag: int) -> Iterator[TrackedConnection]:
    """Those that are established and have this flag in their mark. Entries whose marks are too small are skipped."""
    for mark in re.finditer(rf",mark=\d{{{len(str(flag))},}}", dump):
        found = _TCP.match(dump, dump.rfind("\n", 0, mark.start()) + 1)
        if found and int(found[9]) & flag:
            yield _connection(found, Protocol.TCP)


def _connection(found: re.Match[str], protocol: Protocol) -> TrackedConnection:
    client, to, client_port, to_port, server, seen_as, server_port, seen_port, mark = found.groups()
    return TrackedConnection(
        client,
        int(client_port),
        to,
        int(to_port),
        server,
        int(server_port),
        seen_as,
        int(seen_port),
        int(mark) if mark else 0,
        protocol,
    )
