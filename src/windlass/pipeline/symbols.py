"""Flows in the words of the declarations, for people and goldens: `L3Forwarding 200 ip source=Pod -> ...`."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.openflow import actions
from windlass.openflow.actions import Action, Actions
from windlass.openflow.fields import (
    CT_STATE,
    ETH_TYPE,
    ICMP,
    ICMPV6,
    IN_PORT,
    IP_PROTO,
    SCTP,
    TCP,
    UDP,
    Bits,
    Notation,
    Term,
)
from windlass.openflow.flows import Flow, Group, Meter
from windlass.openflow.matches import Match
from windlass.openflow.notation import ETH_TYPE_NAMES, ct_state_text, mac_text, port_text, value_text
from windlass.pipeline.layout import LAYOUT

_PROTOCOLS = {TCP: "tcp", UDP: "udp", SCTP: "sctp", ICMP: "icmp", ICMPV6: "icmp6"}


def flow_symbols(flow: Flow) -> str:
    conditions = " ".join(match_symbols(flow.match)) or "any"
    return f"{LAYOUT.tables[flow.table].name} {flow.priority} {conditions} -> {actions_symbols(flow.actions)}"


def group_symbols(group: Group) -> Iterator[str]:
    yield f"group {group.identity} select" + (f" by {group.by.name}" if group.by else "")
    for bucket in group.buckets:
        yield f"  bucket {bucket.identity} weight {bucket.weight} -> {actions_symbols(bucket.actions)}"


def meter_symbols(meter: Meter) -> str:
    return f"meter {meter.identity} {meter.per_second} packets/s burst {meter.burst}"


def match_symbols(match: Match) -> Iterator[str]:
    words: list[str] = []
    for before, term in zip((None, *match), match, strict=False):
        if before is not None and _is_wide(before, term):
            words[-1] = _wide(before, term)
        else:
            words += _term(term)
    yield from words


def actions_symbols(does: Actions) -> str:
    words: list[str] = []
    for before, action in zip((None, *does), does, strict=False):
        match before, action:
            case actions.Set(high), actions.Set(low) if _is_wide(high, low):
                words[-1] = f"set {_wide(high, low)}"
            case _:
                words.append(_action(action))
    return ", ".join(words) or "drop"


def _is_wide(high: Term, low: Term) -> bool:
    """Whether these are the two halves of one number."""
    wide = LAYOUT.wide_fields.get(high.field)
    return wide is not None and wide.low.bits.field is low.field and high.mask is None and low.mask is None


def _wide(high: Term, low: Term) -> str:
    return f"{LAYOUT.wide_fields[high.field].name}={high.value << 32 | low.value:016x}"


def _term(term: Term) -> Iterator[str]:
    if term.field is ETH_TYPE and term.value in ETH_TYPE_NAMES:
        yield ETH_TYPE_NAMES[term.value]
    elif term.field is IP_PROTO and term.value in _PROTOCOLS:
        yield _PROTOCOLS[term.value]
    elif term.field is CT_STATE:
        yield f"ct={ct_state_text(term.value, term.mask or 0)}"
    elif term.field is IN_PORT:
        yield f"in_port={port_text(term.value)}"
    else:
        declared = list(_declared(term))
        yield from declared or [f"{term.field.name}={_value(term)}"]


def _declared(term: Term) -> Iterator[str]:
    """The declared fields that a term on a register, ct_mark or ct_label names."""
    mask = (1 << term.field.bits) - 1 if term.mask is None else term.mask
    for field in LAYOUT.fields:
        if field.bits.field is term.field and field.bits.mask & mask:
            value = (term.value & field.bits.mask) >> field.bits.low
            if field.bits.width == 1:
                yield field.name if value else f"no {field.name}"
            else:
                yield f"{field.name}={field.names.get(value, value)}"


def _action(action: Action) -> str:
    match action:
        case actions.Output(port):
            return f"output {port_text(port)}"
        case actions.OutputTo(bits):
            return f"output {_bits(bits)}"
        case actions.Set(term):
            return "set " + " ".join(_term(term))
        case actions.Move(source, to):
            return f"move {_bits(source)} to {_bits(to)}"
        case actions.Goto(table):
            return f"goto {LAYOUT.tables[table].name}"
        case actions.Resubmit(table):
            return f"resubmit {LAYOUT.tables[table].name}"
        case actions.Ct():
            return _ct(action)
        case actions.Clone(copied):
            return f"clone({actions_symbols(copied)})"
        case actions.ToGroup(group):
            return f"group {group}"
        case actions.Learn():
            return _learn(action)
        case actions.ToController(userdata, meter):
            return f"controller({userdata.decode(errors='replace')}{f', meter {meter}' if meter else ''})"


def _learn(action: actions.Learn) -> str:
    """The flow that it installs, where `same` stands for the value of this packet."""
    conditions: list[str] = []
    loads: list[str] = []
    for spec in action.specs:
        words = conditions if isinstance(spec, actions.LearnMatch) else loads
        if isinstance(spec.source, int):
            words += _term(spec.to(spec.source))
        elif spec.source == spec.to:
            words.append(f"same {_bits(spec.to)}")
        else:
            words.append(f"{_bits(spec.to)}={_bits(spec.source)}")
    where = f"{LAYOUT.tables[action.table].name} {action.priority}"
    until = f" until {action.idle_timeout} s idle" if action.idle_timeout else ""
    return f"learn({where} {' '.join(conditions)} -> set {' '.join(loads)}{until})"


def _ct(action: actions.Ct) -> str:
    words = [f"zone {action.zone if isinstance(action.zone, int) else _bits(action.zone)}"]
    if action.commit:
        words.append("commit")
    if action.nat is not None:
        words.append(_nat(action.nat))
    words += [_action(write) for write in action.sets]
    if action.table is not None:
        words.append(f"goto {LAYOUT.tables[action.table].name}")
    return f"ct({', '.join(words)})"


def _nat(nat: actions.Nat) -> str:
    address = nat.source or nat.to
    if address is None:
        return "nat"
    where = f"[{address}]" if address.version == 6 else str(address)
    ports = "" if nat.ports is None else f":{'-'.join(map(str, dict.fromkeys(nat.ports)))}"  # one, or first and last
    return f"nat {'source' if nat.source else 'to'}={where}{ports}"


def _bits(bits: Bits) -> str:
    within = [field for field in LAYOUT.fields if field.bits.field is bits.field and field.bits.mask & bits.mask]
    if sum(field.bits.mask for field in within) == bits.mask:  # one of them, or several that are adjacent
        return "+".join(field.name for field in within)
    whole = bits.low == 0 and bits.width == bits.field.bits
    return bits.field.name if whole else f"{bits.field.name}[{bits.low}:{bits.low + bits.width}]"


def _value(term: Term) -> str:
    value = value_text(term.field, term.value)
    match term.field.notation:
        case _ if term.mask is None:
            return value
        case Notation.MAC:
            return f"{value}/{mac_text(term.mask)}"
        case Notation.IPV4 | Notation.IPV6:
            return f"{value}/{_prefix(term.mask, term.field.bits)}"
        case _:
            return f"{term.value:#x}/{term.mask:#x}"


def _prefix(mask: int, bits: int) -> str:
    ones = mask.bit_count()
    return str(ones) if mask == ((1 << ones) - 1) << (bits - ones) else f"{mask:#x}"
