"""The plan of a load: which servers answer, which targets get connections, and at which rate. It does nothing."""

from __future__ import annotations

from msgspec import Struct


class LoadServer(Struct, frozen=True):
    """Speaks as the lab's own servers do: sends its name to each client, then echoes what it receives."""

    name: str
    namespace: str
    port: int


class LoadTarget(Struct, frozen=True):
    """Where connections go, and the namespace in which they start."""

    name: str
    namespace: str
    address: str
    port: int


class LoadPlan(Struct, frozen=True):
    servers: tuple[LoadServer, ...]
    targets: tuple[LoadTarget, ...]
    per_second: int  # new connections to each target
    held: int  # connections to each target
