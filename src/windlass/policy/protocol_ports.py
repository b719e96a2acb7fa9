"""Sets of ports in the form in which programs read them: the JSON of `windlass policy`."""

from __future__ import annotations

from msgspec import Struct, field

from windlass.model.port_sets import PortSet, by_protocol


class ProtocolPorts(Struct, frozen=True, omit_defaults=True):
    """Ports of TCP, UDP or SCTP. `other` stands for all protocols without ports, and has no numbers."""

    protocol: str
    first: int | None = field(default=None, name="from")
    last: int | None = field(default=None, name="to")


def protocol_ports(ports: PortSet) -> tuple[ProtocolPorts, ...]:
    return tuple(
        ProtocolPorts("other") if protocol is None else ProtocolPorts(protocol.name, first, last)
        for protocol, first, last in by_protocol(ports)
    )
