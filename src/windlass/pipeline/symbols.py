"""Flows in the words of the declarations, for people and goldens: `L3Forwarding 200 ip source=Pod -> ...`."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.openflow.actions import (
    Action,
    Clone,
    Conjunction,
    Ct,
    DecTtl,
    Goto,
    Learn,
    LearnMatch,
    Move,
    Nat,
    Output,
    OutputTo,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    CONTROLLER_PORT,
    CT_STATE,
    ETH_TYPE,
    ICMP,
    ICMPV6,
    IN_PORT,
    IN_PORT_PORT,
    IP_PROTO,
    LOCAL_PORT,
    SCTP,
    TCP,
    UDP,
    Bits,
    Notation,
    Term,
    address_text,
    mac_text,
)
from windlass.openflow.flows import Flow, Group, Meter
from windlass.openflow.matches import Match
from windlass.pipeline.declarations import Layout
from windlass.pipeline.layout import LAYOUT

_ETH_TYPES = {0x0800: "ip", 0x86DD: "ipv6", 0x0806: "arp"}
_PROTOCOLS = {TCP: "tcp", UDP: "udp", SCTP: "sctp", ICMP: "icmp", ICMPV6: "icmp6"}
_STATES = ("new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat")
_PORTS = {LOCAL_PORT: "LOCAL", IN_PORT_PORT: "IN_PORT", CONTROLLER_PORT: "CONTROLLER"}


def flow_symbols(flow: Flow, layout: Layout = LAYOUT) -> str:
    conditions = " ".join(match_symbols(flow.match, layout)) or "any"
    return f"{layout.tables[flow.table].name} {flow.priority} {conditions} -> {actions_symbols(flow.actions, layout)}"


def group_symbols(group: Group, layout: Layout = LAYOUT) -> Iterator[str]:
    yield f"group {group.identity} select" + (f" by {group.by.name}" if group.by else "")
    for bucket in group.buckets:
        yield f"  bucket {bucket.identity} weight {bucket.weight} -> {actions_symbols(bucket.actions, layout)}"


def meter_symbols(meter: Meter) -> str:
    return f"meter {meter.identity} {meter.per_second} packets/s burst {meter.burst}"


def match_symbols(match: Match, layout: Layout = LAYOUT) -> Iterator[str]:
    for term in match:
        yield from _term(term, layout)


def actions_symbols(actions: tuple[Action, ...], layout: Layout = LAYOUT) -> str:
    return ", ".join(_action(action, layout) for action in actions) or "drop"


def _term(term: Term, layout: Layout) -> Iterator[str]:
    if term.field is ETH_TYPE and term.value in _ETH_TYPES:
        yield _ETH_TYPES[term.value]
    elif term.field is IP_PROTO and term.value in _PROTOCOLS:
        yield _PROTOCOLS[term.value]
    elif term.field is CT_STATE:
        mask = term.mask or 0
        yield "ct=" + "".join(
            f"{'+' if term.value >> bit & 1 else '-'}{name}" for bit, name in enumerate(_STATES) if mask >> bit & 1
        )
    elif term.field is IN_PORT:
        yield f"in_port={_port(term.value)}"
    else:
        declared = list(_declared(term, layout))
        yield from declared or [f"{term.field.name}={_value(term)}"]


def _declared(term: Term, layout: Layout) -> Iterator[str]:
    """The declared fields that a term on a register or on ct_mark speaks of."""
    mask = (1 << term.field.bits) - 1 if term.mask is None else term.mask
    for field in layout.fields:
        if field.bits.field is term.field and field.bits.mask & mask:
            value = (term.value & field.bits.mask) >> field.bits.low
            if field.bits.width == 1:
                yield field.name if value else f"no {field.name}"
            else:
                yield f"{field.name}={field.names.get(value, value)}"


def _action(action: Action, layout: Layout) -> str:
    match action:
        case Output(port):
            return f"output {_port(port)}"
        case OutputTo(bits):
            return f"output {_bits(bits, layout)}"
        case Set(term):
            return "set " + " ".join(_term(term, layout))
        case Move(source, to):
            return f"move {_bits(source, layout)} to {_bits(to, layout)}"
        case Goto(table):
            return f"goto {layout.tables[table].name}"
        case Resubmit(table):
            return f"resubmit {layout.tables[table].name}"
        case Ct():
            return _ct(action, layout)
        case Clone(actions):
            return f"clone({actions_symbols(actions, layout)})"
        case ToGroup(group):
            return f"group {group}"
        case Conjunction(identity, clause, clauses):
            return f"conjunction {identity} {clause + 1}/{clauses}"
        case Learn():
            return _learn(action, layout)
        case DecTtl():
            return "dec_ttl"
        case ToController(userdata, meter=meter):
            return f"controller({userdata.hex()}{f', meter {meter}' if meter else ''})"


def _learn(action: Learn, layout: Layout) -> str:
    """As the flow that it writes, where `same` stands for what this packet has."""
    conditions: list[str] = []
    loads: list[str] = []
    for spec in action.specs:
        words = conditions if isinstance(spec, LearnMatch) else loads
        if isinstance(spec.source, int):
            words += _term(spec.to(spec.source), layout)
        elif spec.source == spec.to:
            words.append(f"same {_bits(spec.to, layout)}")
        else:
            words.append(f"{_bits(spec.to, layout)}={_bits(spec.source, layout)}")
    where = f"{layout.tables[action.table].name} {action.priority}"
    until = f" until {action.idle_timeout} s idle" if action.idle_timeout else ""
    return f"learn({where} {' '.join(conditions)} -> set {' '.join(loads)}{until})"


def _ct(action: Ct, layout: Layout) -> str:
    words = [f"zone {action.zone if isinstance(action.zone, int) else _bits(action.zone, layout)}"]
    if action.commit:
        words.append("commit")
    if action.nat is not None:
        words.append(_nat(action.nat))
    words += [_action(write, layout) for write in action.sets]
    if action.table is not None:
        words.append(f"goto {layout.tables[action.table].name}")
    return f"ct({', '.join(words)})"


def _nat(nat: Nat) -> str:
    address = nat.source or nat.to
    if address is None:
        return "nat"
    where = f"[{address}]" if address.version == 6 else str(address)
    ports = (
        ""
        if nat.ports is None
        else f":{nat.ports[0]}-{nat.ports[1]}"
        if nat.ports[0] != nat.ports[1]
        else f":{nat.ports[0]}"
    )
    return f"nat {'source' if nat.source else 'to'}={where}{ports}"


def _bits(bits: Bits, layout: Layout) -> str:
    within = [field for field in layout.fields if field.bits.field is bits.field and field.bits.mask & bits.mask]
    if sum(field.bits.mask for field in within) == bits.mask:  # it is one of them, or several side by side
        return "+".join(field.name for field in within)
    whole = bits.low == 0 and bits.width == bits.field.bits
    return bits.field.name if whole else f"{bits.field.name}[{bits.low}:{bits.low + bits.width}]"


def _port(number: int) -> str:
    return _PORTS.get(number, str(number))


def _value(term: Term) -> str:
    match term.field.notation:
        case Notation.MAC:
            return mac_text(term.value) + ("" if term.mask is None else f"/{mac_text(term.mask)}")
        case Notation.IPV4 | Notation.IPV6:
            text = address_text(term.value, term.field.notation)
            return text if term.mask is None else f"{text}/{_prefix(term.mask, term.field.bits)}"
        case Notation.HEX:
            return f"{term.value:#x}" + ("" if term.mask is None else f"/{term.mask:#x}")
        case Notation.DECIMAL:
            return str(term.value) if term.mask is None else f"{term.value:#x}/{term.mask:#x}"


def _prefix(mask: int, bits: int) -> str:
    ones = mask.bit_count()
    return str(ones) if mask == ((1 << ones) - 1) << (bits - ones) else f"{mask:#x}"
