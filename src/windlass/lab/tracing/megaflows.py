"""Parses `ovs-appctl dpctl/dump-flows -m`, and finds in it the path of a packet through the switch. Pure.

The datapath caches each lookup as a megaflow, which includes the state from connection tracking: so a dump shows the
actual path of a packet, pass by pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address

from windlass.lab.probing.packets import TCP, UDP
from windlass.lab.tracing.traces import datapath_actions, recirculations, split
from windlass.model.families import IPAddress
from windlass.openflow import fields

NEW, REPLY = 0x01, 0x08  # bits of ct_state
LONGEST = 12  # passes: more means that the packet loops
_PROTOCOLS = {"tcp": TCP, "udp": UDP}


class PathNotFoundError(LookupError):
    """The dump does not show the whole path of the packet; the message says where it ends."""


class Phase(Enum):
    """Which packet of a connection: they differ in their state in connection tracking."""

    FIRST = "first"
    REPLY = "reply"
    ESTABLISHED = "established"

    @property
    def ct_state(self) -> int:
        return {Phase.FIRST: NEW, Phase.REPLY: REPLY, Phase.ESTABLISHED: 0}[self]


@dataclass(frozen=True, slots=True)
class Ends:
    """The source and destination of a packet."""

    source: IPAddress
    source_port: int
    destination: IPAddress
    destination_port: int

    def __str__(self) -> str:
        return f"{_end(self.source, self.source_port)} to {_end(self.destination, self.destination_port)}"


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """The addresses and ports of a packet, and its MACs on this hop."""

    ends: Ends
    eth_source: str
    eth_destination: str


@dataclass(frozen=True, slots=True)
class Megaflow:
    key: str  # as printed in the dump
    actions: tuple[str, ...]
    fields: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def recirc_id(self) -> int:
        return int(self.fields.get("recirc_id", "0"), 16)

    @property
    def in_port(self) -> str:
        return self.fields.get("in_port", "")

    @property
    def traceable(self) -> str:
        """The key without ct_tuple, which `ofproto/trace` cannot parse for IPv6 connections."""
        return ",".join(part for part in split(self.key) if not part.startswith("ct_tuple"))

    @property
    def unpacks_to(self) -> str:
        """The tunnel port, if the megaflow decapsulates."""
        return next((action[8:-1] for action in self.actions if action.startswith("tnl_pop(")), "")

    @property
    def protocol(self) -> int | None:
        """The protocol number of the IP packet, 6 for TCP; None if it was not an IP packet."""
        value = _part(self.fields.get("ipv4") or self.fields.get("ipv6") or "", "proto").partition("/")[0]
        return int(value, 0) if value else None

    def fits(self, header: PacketHeader, transport: str = "tcp") -> bool:
        address = self.fields.get("ipv4") or self.fields.get("ipv6") or ""
        ports, macs, ends = self.fields.get(transport, ""), self.fields.get("eth", ""), header.ends
        return (
            bool(address)
            and _mac_fits(_part(macs, "src"), header.eth_source)
            and _mac_fits(_part(macs, "dst"), header.eth_destination)
            and _number_fits(_part(address, "proto"), _PROTOCOLS[transport])
            and _address_fits(_part(address, "src"), ends.source)
            and _address_fits(_part(address, "dst"), ends.destination)
            and _number_fits(_part(ports, "src"), ends.source_port)
            and _number_fits(_part(ports, "dst"), ends.destination_port)
        )

    def fits_phase(self, phase: Phase) -> bool:
        """Whether the connection tracking state matches, as far as the lookup depends on it."""
        value, _, mask = self.fields.get("ct_state", "0/0").partition("/")
        asked = (int(mask, 16) if mask else 0xFF) & (NEW | REPLY)
        return int(value, 16) & asked == phase.ct_state & asked


def parse(text: str) -> tuple[Megaflow, ...]:
    return tuple(_megaflow(line) for line in text.splitlines() if "actions:" in line)


def path(megaflows: Sequence[Megaflow], in_port: str, header: PacketHeader, phase: Phase) -> tuple[Megaflow, ...]:
    """The passes of a packet that came in by this port of the datapath."""
    entries = [flow for flow in megaflows if flow.recirc_id == 0 and flow.in_port == in_port and flow.fits(header)]
    return _onward(megaflows, [_only(entries, f"from {in_port}, {header.ends}")], phase)


def path_from_tunnel(
    megaflows: Sequence[Megaflow], in_port: str, outer: PacketHeader, inner: PacketHeader, phase: Phase
) -> tuple[Megaflow, ...]:
    """The same for a packet that came in through a tunnel."""
    packed = [flow for flow in megaflows if flow.recirc_id == 0 and flow.in_port == in_port and flow.fits(outer, "udp")]
    first = _only([flow for flow in packed if flow.unpacks_to], f"from {in_port} in a tunnel, {outer.ends}")
    return (first, *path(megaflows, first.unpacks_to, inner, phase))


def _onward(megaflows: Sequence[Megaflow], passed: list[Megaflow], phase: Phase) -> tuple[Megaflow, ...]:
    while (again := next(recirculations(passed[-1].actions), None)) is not None:
        if len(passed) == LONGEST:
            raise PathNotFoundError(f"the packet loops: {[flow.recirc_id for flow in passed]}")
        next_ones = [
            flow
            for flow in megaflows
            if (flow.recirc_id, flow.in_port) == (again, passed[0].in_port) and flow.fits_phase(phase)
        ]
        passed.append(_only(next_ones, f"recirculated as {again:#x}, {phase.value}"))
    return tuple(passed)


def _only(found: Iterable[Megaflow], what: str) -> Megaflow:
    # Megaflows with different matches and the same actions show the same path.
    candidates = list({flow.actions: flow for flow in sorted(found, key=lambda flow: flow.key)}.values())
    if len(candidates) != 1:
        keys = "".join(f"\n  {flow.key}" for flow in candidates)
        raise PathNotFoundError(f"{len(candidates)} megaflows match the packet {what}; expected one{keys}")
    return candidates[0]


_LINE = re.compile(r"(?:ufid:[0-9a-f-]+, )?(?P<key>.*?), packets:\d+, .*?actions:(?P<actions>.*)")


def _megaflow(line: str) -> Megaflow:
    found = _LINE.match(line)
    if found is None:
        raise PathNotFoundError(f"not a megaflow of dpctl/dump-flows: {line[:200]!r}")
    actions = found["actions"].partition(", dp-extra-info:")[0]
    named = (part.partition("(") for part in split(found["key"]))
    fields = {name: value[:-1] for name, _, value in named}
    return Megaflow(found["key"], datapath_actions(actions), fields)


def _part(text: str, name: str) -> str:
    return next((part.removeprefix(f"{name}=") for part in split(text) if part.startswith(f"{name}=")), "")


def _address_fits(pattern: str, address: IPAddress) -> bool:
    value, _, mask = pattern.partition("/")
    if not value:
        return True
    wanted = ip_address(value)
    asked = int(ip_address(mask)) if mask else (1 << wanted.max_prefixlen) - 1
    return wanted.version == address.version and (int(wanted) ^ int(address)) & asked == 0


def _mac_fits(pattern: str, mac: str) -> bool:
    value, _, mask = pattern.partition("/")
    if not value:
        return True
    asked = fields.mac(mask) if mask else (1 << 48) - 1
    return (fields.mac(value) ^ fields.mac(mac)) & asked == 0


def _number_fits(pattern: str, number: int) -> bool:
    value, _, mask = pattern.partition("/")
    return not value or (int(value, 0) ^ number) & (int(mask, 0) if mask else 0xFFFF) == 0


def _end(address: IPAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
