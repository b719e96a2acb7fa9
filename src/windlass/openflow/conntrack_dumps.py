"""UDP connections in the output of `ovs-appctl dpctl/dump-conntrack`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

# Without `^`: a pattern that begins with a text skips a hundred thousand entries of TCP in milliseconds.
_UDP = re.compile(
    r"udp,orig=\(src=([0-9a-f.:]+),dst=([0-9a-f.:]+),sport=(\d+),dport=(\d+)\)"
    r",reply=\(src=([0-9a-f.:]+),dst=([0-9a-f.:]+),sport=(\d+),dport=(\d+)\)"
    r"(?:,zone=\d+)?(?:,mark=(\d+))?"
)


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


def udp_connections(dump: str) -> Iterator[TrackedConnection]:
    for found in _UDP.finditer(dump):
        client, to, client_port, to_port, server, seen_as, server_port, seen_port, mark = found.groups()
        yield TrackedConnection(
            client,
            int(client_port),
            to,
            int(to_port),
            server,
            int(server_port),
            seen_as,
            int(seen_port),
            int(mark) if mark else 0,
        )
