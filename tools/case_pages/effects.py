"""What each pass through a switch changed in a packet, in a few words, found by comparing the traces of two passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from windlass.lab.tracing.megaflows import Ends
from windlass.lab.tracing.traces import CtAction, Pass
from windlass.pipeline.tracking import POD_ZONE, SNAT_ZONE

ZONES = {POD_ZONE: "connections", SNAT_ZONE: "sources"}
_SOURCES, _DESTINATIONS = ("nw_src", "ipv6_src"), ("nw_dst", "ipv6_dst")


def effects(passes: Sequence[Pass], place: int, known_ports: Iterable[int]) -> Iterator[str]:
    """The effect of the pass at this place."""
    this, following = passes[place], passes[place + 1] if place + 1 < len(passes) else None
    for action in this.actions:
        if action.startswith("tnl_pop("):
            yield "unpacked from the tunnel"
        elif action.startswith("hash("):
            yield "its hash chooses an endpoint"
    for ct in this.ct:
        yield from _ct(ct, this, following, frozenset(known_ports))
    if any(action.startswith("tnl_push(") for action in this.actions):
        yield "packed into the tunnel"
    if not this.actions:
        yield "DROPPED"


def _ct(ct: CtAction, this: Pass, following: Pass | None, known_ports: frozenset[int]) -> Iterator[str]:
    zone = f"ct {ct.zone}"
    if ct.commit and not ct.nat:
        yield f"{zone}: remembered"
        return
    state = following.packet.get("ct_state", "").split("|") if following else []
    word = "remembered" if ct.commit else "new" if "new" in state else "an answer" if "rpl" in state else "known"
    yield f"{zone}: {word}"
    if following is None:
        return
    if (source := _changed(this, following, _SOURCES, "tp_src", known_ports)) is not None:
        yield f"  now from {source}"
    if (destination := _changed(this, following, _DESTINATIONS, "tp_dst", known_ports)) is not None:
        yield f"  now to {destination}"


def _changed(
    this: Pass, following: Pass, addresses: tuple[str, str], port: str, known_ports: frozenset[int]
) -> str | None:
    before, after = (next((p.packet[name] for name in addresses if name in p.packet), "") for p in (this, following))
    ports = this.packet.get(port), following.packet.get(port)
    if before == after:
        return None if ports[0] == ports[1] else f"{after}, another port"
    return end(after, int(ports[1] or 0), known_ports)


def end(address: str, port: int, known_ports: Iterable[int]) -> str:
    """With its port if a manifest names it; other ports differ between runs."""
    if port not in known_ports:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def between(ends: Ends, known_ports: Iterable[int]) -> tuple[str, str]:
    ports = frozenset(known_ports)
    return end(str(ends.source), ends.source_port, ports), end(str(ends.destination), ends.destination_port, ports)
