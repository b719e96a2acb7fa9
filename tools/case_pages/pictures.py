"""The path of a packet and its reply as an SVG sequence diagram: one lane for each place, time runs down. Pure.

SVG because it needs nothing but a browser: GitHub shows it, and so does a reader without a network.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from case_pages.effects import between, effects, end
from case_pages.travels import Travelled
from windlass.lab.scenarios.objects import LabNode
from windlass.lab.tracing.journeys import Hop, PacketPath, PathPoint, SwitchVisit
from windlass.lab.tracing.megaflows import Phase
from windlass.pipeline.layout import LAYOUT

LANE, MARGIN, BOX = 196, 150, 284  # pixels
LINE, LETTER, LETTERS = 15, 7.23, 37  # height of a line of text, width of a letter, and how many fit a box
COLOURS = {Phase.FIRST: "#0969da", Phase.REPLY: "#1a7f37"}
TITLES = {Phase.FIRST: "request: the first packet", Phase.REPLY: "reply"}
INK, PALE, RULE, FILL, RED = "#1f2328", "#59636e", "#d1d9e0", "#f6f8fa", "#cf222e"
STYLE = (
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:" + INK + "}"
    ".name{font:600 13px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}"
    ".pale{fill:" + PALE + "}.red{fill:" + RED + ";font-weight:bold}.first{fill:#0550ae}.reply{fill:#116329}"
    ".over{paint-order:stroke;stroke:#fff;stroke-width:4px}"
)


@dataclass(slots=True)
class _Drawing:
    lanes: Sequence[PathPoint]
    known_ports: frozenset[int]
    parts: list[str] = field(default_factory=list)
    y: int = 74

    def x(self, place: PathPoint) -> int:
        return MARGIN + LANE * self.lanes.index(place)

    def text(self, x: int, y: int, words: str, kind: str = "", anchor: str = "start") -> None:
        shape = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x}" y="{y}"{shape} text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, place: PathPoint, lines: Sequence[tuple[str, str]], colour: str) -> None:
        """Lines of text, each with its kind."""
        height = LINE * len(lines) + 10
        width = min(BOX, 18 + round(LETTER * max(len(words) for words, _ in lines)))
        left = self.x(place) - width // 2
        self.parts.append(
            f'<rect x="{left}" y="{self.y}" width="{width}" height="{height}" rx="6" fill="{FILL}" stroke="{colour}"/>'
        )
        for number, (words, kind) in enumerate(lines):
            indent = len(words) - len(words.lstrip())  # spaces at the beginning count for nothing in SVG
            self.text(left + 8 + round(LETTER * indent), self.y + 16 + LINE * number, words.lstrip(), kind)
        self.y += height + 6

    def arrow(self, hop: Hop, phase: Phase) -> None:
        start, stop = self.x(hop.sender), self.x(hop.receiver)
        middle, side = (start + stop) // 2, 7 if stop > start else -7
        source, destination = between(hop.ends, self.known_ports)
        self.text(middle, self.y + 14, source, "over", "middle")
        self.text(middle, self.y + 14 + LINE, f"→ {destination}", "over", "middle")
        self.y += 14 + LINE + 7
        self.text(middle, self.y + 14, _by(hop), "pale over", "middle")
        colour = COLOURS[phase]
        self.parts.append(  # above the words, whose white edge would hide it
            f'<path d="M{start} {self.y}H{stop - side}" stroke="{colour}" stroke-width="2" fill="none"/>'
            f'<path d="M{stop} {self.y}l{-side * 9 // 7} -5v10z" fill="{colour}"/>'
        )
        self.y += 24


def picture(travelled: Travelled) -> str:
    journey = travelled.journey
    ways = [journey.paths[phase] for phase in TITLES if phase in journey.paths]
    lanes = _lanes(ways)
    drawing = _Drawing(lanes, known_ports(travelled))
    for way in ways:
        _draw(drawing, way, travelled)
    width, height = 2 * MARGIN + LANE * (len(lanes) - 1), drawing.y + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(summary(travelled))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="{RULE}"/>',
        *_heads(drawing, travelled, height),
        *drawing.parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def summary(travelled: Travelled) -> str:
    """The picture as a sentence, for screen readers."""
    sentences = []
    for phase, title in (("request", Phase.FIRST), ("reply", Phase.REPLY)):
        way = travelled.journey.paths.get(title)
        if way:
            places = [way.hops[0].sender, *(hop.receiver for hop in way.hops)]
            sentences.append(f"{phase}: {', '.join(_name(place) for place in places)}")
    return "; ".join(sentences)


def known_ports(travelled: Travelled) -> frozenset[int]:
    """The ports that manifests name: of Services, NodePorts and containers."""
    desired = travelled.desired
    ports = {port.container_port for pod in desired.pods.values() for port in pod.ports}
    for service in desired.services.values():
        ports |= {number for port in service.spec.ports for number in (port.port, port.node_port) if number}
    return frozenset(ports)


def pass_lines(visit: SwitchVisit, ports: Iterable[int], kind: str) -> Iterator[tuple[str, str]]:
    """A visit as text: the tables of each pass, then its effects; `kind` marks what has changed."""
    for number, this in enumerate(visit.passes):
        tables = [LAYOUT.tables[met.table].name for met in this.met if not met.outer]
        words = ", ".join(tables) or "the Service's group"
        for place, line in enumerate(textwrap.wrap(words, LETTERS - 2)):
            yield f"{number + 1 if place == 0 else ' '} {line}", ""
        for effect in effects(visit.passes, number, ports):
            yield f"  {effect}", "red" if effect == "DROPPED" else kind if effect.startswith("  ") else "pale"


# Details ----------------------------------------------------------------------------------------------------------


def _lanes(ways: Iterable[PacketPath]) -> list[PathPoint]:
    """In the order in which the packet reaches them; host and switch of a Node side by side."""
    met = list(dict.fromkeys(place for way in ways for hop in way.hops for place in (hop.sender, hop.receiver)))
    nodes = dict.fromkeys(place.name for place in met if place.kind in {"host", "switch"})
    beside = {
        name: [place for place in met if place.name == name and place.kind in {"host", "switch"}] for name in nodes
    }
    return list(dict.fromkeys(one for place in met for one in beside.get(place.name, [place])))


def _draw(drawing: _Drawing, way: PacketPath, travelled: Travelled) -> None:
    drawing.text(14, drawing.y + 12, TITLES[way.phase], "name")
    drawing.y += 20
    colour = COLOURS[way.phase]
    before: Hop | None = None
    for step in way.steps:
        if isinstance(step, SwitchVisit):
            drawing.box(
                PathPoint("switch", step.node), list(pass_lines(step, drawing.known_ports, way.phase.value)), colour
            )
            continue
        if notes := list(_host_notes(before, step, travelled)):
            drawing.box(step.sender, [(line, "") for note in notes for line in textwrap.wrap(note, LETTERS)], RULE)
        drawing.arrow(step, way.phase)
        before = step
    if before and way.phase is Phase.REPLY and before.receiver.kind == "host":
        asked, port = travelled.journey.asked
        if str(before.ends.source) != asked:
            note = f"nftables: from {end(asked, port, drawing.known_ports)} again"
            drawing.box(before.receiver, [(line, "") for line in textwrap.wrap(note, LETTERS)], RULE)
    drawing.y += 10


def _host_notes(before: Hop | None, hop: Hop, travelled: Travelled) -> Iterator[str]:
    """What a host did with the packet before it sent it."""
    ports = known_ports(travelled)
    asked, port = travelled.journey.asked
    source, destination = between(hop.ends, ports)
    if hop.sender.kind != "host":
        return
    if before is None:
        if str(hop.ends.destination) != asked and hop.ends.destination_port == port:
            yield from (f"asks {end(asked, port, ports)}", f"nftables: to {destination}", f"nftables: from {source}")
        return
    if before.receiver != hop.sender:
        return
    known = between(before.ends, ports)
    if known[1] != destination:
        yield f"nftables: to {destination}"
    if known[0] != source:
        yield f"nftables: from {source}"
    yield "forwards it"


def _heads(drawing: _Drawing, travelled: Travelled, height: int) -> Iterator[str]:
    for place in drawing.lanes:
        x = drawing.x(place)
        yield f'<path d="M{x} 58V{height - 12}" stroke="{RULE}" stroke-dasharray="3 4"/>'
        yield f'<text x="{x}" y="28" class="name" text-anchor="middle">{escape(_name(place))}</text>'
        yield f'<text x="{x}" y="46" class="pale" text-anchor="middle">{escape(_address(place, travelled))}</text>'


def _name(place: PathPoint) -> str:
    match place.kind:
        case "pod":
            return f"Pod {place.name.partition('/')[2]}"
        case "host":
            return f"host of {place.name}"
        case "switch":
            return f"switch of {place.name}"
        case "externalHost":
            return f"{place.name}, outside"
        case _:
            return "the wire"


def _address(place: PathPoint, travelled: Travelled) -> str:
    match place.kind:
        case "pod":
            return travelled.addresses[place.name]
        case "host":
            node: LabNode = travelled.desired.nodes[place.name]
            return ", ".join(map(str, (*node.addresses.values(), *node.other_addresses)))
        case "externalHost":
            return ", ".join(map(str, travelled.desired.hosts[place.name].addresses))
        case _:
            return "br-int" if place.kind == "switch" else ""


def _by(hop: Hop) -> str:
    if hop.outer:
        ends = hop.outer.ends
        return f"in the tunnel {ends.source} → {ends.destination}"
    if hop.interface.startswith("pod/"):
        return "eth0 of the Pod"
    return "by the wire" if hop.interface == "eth0" else f"by {hop.interface}"
