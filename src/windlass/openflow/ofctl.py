"""Flows, groups and meters as `ovs-ofctl -O OpenFlow15` reads them, for people and as an independent way into a switch.

Numbers stay numbers here; the text with the pipeline's names is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address

from windlass.openflow.actions import (
    Action,
    Actions,
    Clone,
    Conjunction,
    Ct,
    DecTtl,
    Goto,
    Learn,
    LearnLoad,
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
    IP_FRAG,
    IP_PROTO,
    LOCAL_PORT,
    SCTP,
    TCP,
    TCP_FLAGS,
    UDP,
    Bits,
    Field,
    Notation,
    Term,
    address_text,
    mac_text,
)
from windlass.openflow.flows import Bucket, Flow, Group, Meter
from windlass.openflow.matches import Match

_IPV4, _ARP, _IPV6 = 0x0800, 0x0806, 0x86DD
_ETH_TYPES = {_IPV4: "ip", _ARP: "arp", _IPV6: "ipv6"}
_PROTOCOLS = {
    (_IPV4, TCP): "tcp",
    (_IPV4, UDP): "udp",
    (_IPV4, SCTP): "sctp",
    (_IPV4, ICMP): "icmp",
    (_IPV6, TCP): "tcp6",
    (_IPV6, UDP): "udp6",
    (_IPV6, SCTP): "sctp6",
    (_IPV6, ICMPV6): "icmp6",
}
_PORTS = {LOCAL_PORT: "LOCAL", IN_PORT_PORT: "IN_PORT", CONTROLLER_PORT: "CONTROLLER"}

# From the lowest bit up.
_CT_STATES = ("new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat")
_TCP_FLAGS = ("fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns")
_FRAGMENTS = {(0, None): "no", (1, 1): "yes", (1, None): "first", (3, None): "later", (0, 2): "not_later"}


def flow_text(flow: Flow, cookie: int | None = None) -> str:
    head = [f"table={flow.table}", f"priority={flow.priority}", *_conditions(flow.match)]
    if cookie is not None:
        head.insert(0, f"cookie={cookie:#x}")
    return f"{','.join(head)} actions={actions_text(flow.actions)}"


def group_text(group: Group) -> str:
    chosen = "selection_method=dp_hash" if group.by is None else f"selection_method=hash,fields({group.by.name})"
    return ",".join([f"group_id={group.identity}", "type=select", chosen, *map(_bucket, group.buckets)])


def meter_text(meter: Meter) -> str:
    band = f"bands=type=drop,rate={meter.per_second},burst_size={meter.burst}"
    return f"meter={meter.identity},pktps,burst,stats,{band}"


def actions_text(actions: Actions) -> str:
    return ",".join(map(_action, actions)) or "drop"


def _bucket(bucket: Bucket) -> str:
    return f"bucket=bucket_id:{bucket.identity},weight:{bucket.weight},actions={actions_text(bucket.actions)}"


def _conditions(match: Match) -> Iterator[str]:
    whole = {term.field: term.value for term in match if term.field in {ETH_TYPE, IP_PROTO}}
    eth_type, protocol = whole.get(ETH_TYPE, -1), whole.get(IP_PROTO, -1)
    # One word for both says more, but then neither may be said again.
    if word := _PROTOCOLS.get((eth_type, protocol)):
        yield word
        said = {ETH_TYPE, IP_PROTO}
    elif word := _ETH_TYPES.get(eth_type):
        yield word
        said = {ETH_TYPE}
    else:
        said = set()
    for term in match:
        if term.field not in said and term.mask != 0:
            yield f"{term.field.name}={_value(term)}"


def _value(term: Term) -> str:
    field, value, mask = term.field, term.value, term.mask
    if field is IN_PORT:
        return _port(value)
    if field is IP_FRAG and (value, mask) in _FRAGMENTS:
        return _FRAGMENTS[value, mask]
    if mask is None:
        return _number(field, value)
    if field is CT_STATE and not mask >> len(_CT_STATES):
        return _flags(_CT_STATES, value, mask)
    if field is TCP_FLAGS and not mask >> len(_TCP_FLAGS):
        return _flags(_TCP_FLAGS, value, mask)
    if field.notation in {Notation.IPV4, Notation.IPV6}:
        hosts = ~mask & ((1 << field.bits) - 1)
        if not hosts & (hosts + 1):
            return f"{_number(field, value)}/{field.bits - hosts.bit_length()}"
        return f"{_number(field, value)}/{_number(field, mask)}"
    if field.notation is Notation.MAC:
        return f"{mac_text(value)}/{mac_text(mask)}"
    return f"{value:#x}/{mask:#x}"


def _number(field: Field, value: int) -> str:
    match field.notation:
        case Notation.MAC:
            return mac_text(value)
        case Notation.IPV4 | Notation.IPV6:
            return address_text(value, field.notation)
        case Notation.HEX:
            return f"{value:#x}"
        case Notation.DECIMAL:
            return str(value)


def _flags(names: tuple[str, ...], value: int, mask: int) -> str:
    return "".join(("+" if value >> bit & 1 else "-") + name for bit, name in enumerate(names) if mask >> bit & 1)


def _port(number: int) -> str:
    return _PORTS.get(number, str(number))


def _bits(bits: Bits) -> str:
    # What ovs-ofctl calls in_port outside a match is another field, of 16 bits.
    name = "in_port_oxm" if bits.field is IN_PORT else bits.field.name
    if bits == bits.field.whole:
        return f"{name}[]"
    if bits.width == 1:
        return f"{name}[{bits.low}]"
    return f"{name}[{bits.low}..{bits.low + bits.width - 1}]"


def _action(action: Action) -> str:
    match action:
        case Output(port) if port == CONTROLLER_PORT:
            return "CONTROLLER:65535"
        case Output(port) if port == IN_PORT_PORT:
            return "IN_PORT"
        case Output(port):
            return f"output:{_port(port)}"
        case OutputTo(bits):
            return f"output:{_bits(bits)}"
        case Set(term):
            return f"set_field:{_written(term)}->{term.field.name}"
        case Move(source, to):
            return f"move:{_bits(source)}->{_bits(to)}"
        case Goto(table):
            return f"goto_table:{table}"
        case Resubmit(table):
            return f"resubmit(,{table})"
        case ToGroup(group):
            return f"group:{group}"
        case Conjunction(identity, clause, clauses):
            return f"conjunction({identity},{clause + 1}/{clauses})"
        case DecTtl():
            return "dec_ttl"
        case ToController():
            return _controller(action)
        case Ct():
            return _ct(action)
        case Clone(actions):
            return f"clone({','.join(map(_action, actions))})"
        case Learn():
            return _learn(action)


def _written(term: Term) -> str:
    """A value to write. Unlike a condition it has no flags and no prefix lengths."""
    value = _number(term.field, term.value)
    return value if term.mask is None else f"{value}/{_number(term.field, term.mask)}"


def _controller(action: ToController) -> str:
    if not action.userdata and not action.meter:
        return f"CONTROLLER:{action.max_length}"
    arguments = [f"max_len={action.max_length}"]
    if action.userdata:
        arguments.append(f"userdata={action.userdata.hex('.')}")
    if action.meter:
        arguments.append(f"meter_id={action.meter}")
    return f"controller({','.join(arguments)})"


def _ct(action: Ct) -> str:
    arguments = ["commit"] if action.commit else []
    if action.table is not None:
        arguments.append(f"table={action.table}")
    arguments.append(f"zone={action.zone if isinstance(action.zone, int) else _bits(action.zone)}")
    if action.nat is not None:
        arguments.append(_nat(action.nat))
    if action.sets:
        arguments.append(f"exec({','.join(map(_action, action.sets))})")
    return f"ct({','.join(arguments)})"


def _nat(nat: Nat) -> str:
    side, address = ("src", nat.source) if nat.source is not None else ("dst", nat.to)
    if address is None:
        return "nat"
    if nat.ports is None:
        return f"nat({side}={address})"
    first, last = nat.ports
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"nat({side}={host}:{first})" if first == last else f"nat({side}={host}:{first}-{last})"


def _learn(action: Learn) -> str:
    arguments = [f"table={action.table}", f"priority={action.priority}", f"cookie={action.cookie:#x}"]
    if action.idle_timeout:
        arguments.append(f"idle_timeout={action.idle_timeout}")
    if action.hard_timeout:
        arguments.append(f"hard_timeout={action.hard_timeout}")
    if action.delete_learned:
        arguments.append("delete_learned")
    return f"learn({','.join([*arguments, *map(_spec, action.specs)])})"


def _spec(spec: LearnMatch | LearnLoad) -> str:
    to, source = spec.to, spec.source
    if isinstance(spec, LearnLoad):
        return f"load:{f'{source:#x}' if isinstance(source, int) else _bits(source)}->{_bits(to)}"
    if isinstance(source, int):
        whole = to == to.field.whole
        return f"{to.field.name}={_number(to.field, source)}" if whole else f"{_bits(to)}={source:#x}"
    return f"{_bits(to)}={_bits(source)}"
