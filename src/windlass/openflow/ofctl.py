"""Flows, groups and meters in the syntax of `ovs-ofctl -O OpenFlow15`: to read, and to install with that command.

Tables and registers are numbers here; `pipeline.symbols` writes flows with the names of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address

from windlass.openflow import actions
from windlass.openflow.actions import Action, Actions
from windlass.openflow.fields import (
    CT_STATE,
    ETH_TYPE,
    ICMP,
    ICMPV6,
    IN_PORT,
    IN_PORT_PORT,
    IP_FRAG,
    IP_PROTO,
    SCTP,
    TCP,
    TCP_FLAGS,
    UDP,
    Bits,
    Notation,
    Term,
)
from windlass.openflow.flows import Bucket, Flow, Group, Meter
from windlass.openflow.matches import Match
from windlass.openflow.notation import ETH_TYPE_NAMES, ct_state_text, flags_text, mac_text, port_text, value_text

_IPV4, _IPV6 = 0x0800, 0x86DD
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
_TCP_FLAGS = ("fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns")  # from the lowest bit up
_FRAGMENTS = {(0, None): "no", (1, 1): "yes", (1, None): "first", (3, None): "later", (0, 2): "not_later"}


def flow_text(flow: Flow) -> str:
    head = [f"table={flow.table}", f"priority={flow.priority}", *_conditions(flow.match)]
    return f"{','.join(head)} actions={actions_text(flow.actions)}"


def group_text(group: Group) -> str:
    chosen = "selection_method=dp_hash" if group.by is None else f"selection_method=hash,fields({group.by.name})"
    return ",".join([f"group_id={group.identity}", "type=select", chosen, *map(_bucket, group.buckets)])


def meter_text(meter: Meter) -> str:
    band = f"bands=type=drop,rate={meter.per_second},burst_size={meter.burst}"
    return f"meter={meter.identity},pktps,burst,stats,{band}"


def actions_text(does: Actions) -> str:
    return ",".join(map(_action, does)) or "drop"


def _bucket(bucket: Bucket) -> str:
    return f"bucket=bucket_id:{bucket.identity},weight:{bucket.weight},actions={actions_text(bucket.actions)}"


def _conditions(match: Match) -> Iterator[str]:
    whole = {term.field: term.value for term in match if term.field in {ETH_TYPE, IP_PROTO}}
    eth_type, protocol = whole.get(ETH_TYPE, -1), whole.get(IP_PROTO, -1)
    # ovs-ofctl refuses a field that a word such as `tcp` already implies.
    if word := _PROTOCOLS.get((eth_type, protocol)):
        yield word
        said = {ETH_TYPE, IP_PROTO}
    elif word := ETH_TYPE_NAMES.get(eth_type):
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
        return port_text(value)
    if field is IP_FRAG and (value, mask) in _FRAGMENTS:
        return _FRAGMENTS[value, mask]
    if mask is None:
        return value_text(field, value)
    if field is CT_STATE:
        return ct_state_text(value, mask)
    if field is TCP_FLAGS and not mask >> len(_TCP_FLAGS):
        return flags_text(_TCP_FLAGS, value, mask)
    if field.notation in {Notation.IPV4, Notation.IPV6}:
        hosts = ~mask & ((1 << field.bits) - 1)
        if not hosts & (hosts + 1):
            return f"{value_text(field, value)}/{field.bits - hosts.bit_length()}"
        return f"{value_text(field, value)}/{value_text(field, mask)}"
    if field.notation is Notation.MAC:
        return f"{mac_text(value)}/{mac_text(mask)}"
    return f"{value:#x}/{mask:#x}"


def _bits(bits: Bits) -> str:
    # Outside a match, `in_port` of ovs-ofctl is a different field, of 16 bits.
    name = "in_port_oxm" if bits.field is IN_PORT else bits.field.name
    if bits == bits.field.whole:
        return f"{name}[]"
    if bits.width == 1:
        return f"{name}[{bits.low}]"
    return f"{name}[{bits.low}..{bits.low + bits.width - 1}]"


def _action(action: Action) -> str:
    match action:
        case actions.Output(port) if port == IN_PORT_PORT:
            return "IN_PORT"
        case actions.Output(port):
            return f"output:{port_text(port)}"
        case actions.OutputTo(bits):
            return f"output:{_bits(bits)}"
        case actions.Set(term):
            return f"set_field:{_written(term)}->{term.field.name}"
        case actions.Move(source, to):
            return f"move:{_bits(source)}->{_bits(to)}"
        case actions.Goto(table):
            return f"goto_table:{table}"
        case actions.Resubmit(table):
            return f"resubmit(,{table})"
        case actions.ToGroup(group):
            return f"group:{group}"
        case actions.ToController(userdata, meter):
            limit = f",meter_id={meter}" if meter else ""
            return f"controller(max_len=65535,userdata={userdata.hex('.')}{limit})"
        case actions.Ct():
            return _ct(action)
        case actions.Clone(copied):
            return f"clone({','.join(map(_action, copied))})"
        case actions.Learn():
            return _learn(action)


def _written(term: Term) -> str:
    """A value to write. Unlike a condition, it has no flags and no prefix length."""
    value = value_text(term.field, term.value)
    return value if term.mask is None else f"{value}/{value_text(term.field, term.mask)}"


def _ct(action: actions.Ct) -> str:
    arguments = ["commit"] if action.commit else []
    if action.table is not None:
        arguments.append(f"table={action.table}")
    arguments.append(f"zone={action.zone if isinstance(action.zone, int) else _bits(action.zone)}")
    if action.nat is not None:
        arguments.append(_nat(action.nat))
    if action.sets:
        arguments.append(f"exec({','.join(map(_action, action.sets))})")
    return f"ct({','.join(arguments)})"


def _nat(nat: actions.Nat) -> str:
    side, address = ("src", nat.source) if nat.source is not None else ("dst", nat.to)
    if address is None:
        return "nat"
    if nat.ports is None:
        return f"nat({side}={address})"
    first, last = nat.ports
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"nat({side}={host}:{first})" if first == last else f"nat({side}={host}:{first}-{last})"


def _learn(action: actions.Learn) -> str:
    arguments = [f"table={action.table}", f"priority={action.priority}", f"cookie={action.cookie:#x}"]
    if action.idle_timeout:
        arguments.append(f"idle_timeout={action.idle_timeout}")
    if action.delete_learned:
        arguments.append("delete_learned")
    return f"learn({','.join([*arguments, *map(_spec, action.specs)])})"


def _spec(spec: actions.LearnMatch | actions.LearnLoad) -> str:
    to, source = spec.to, spec.source
    if isinstance(spec, actions.LearnLoad):
        return f"load:{f'{source:#x}' if isinstance(source, int) else _bits(source)}->{_bits(to)}"
    if isinstance(source, int):
        whole = to == to.field.whole
        return f"{to.field.name}={value_text(to.field, source)}" if whole else f"{_bits(to)}={source:#x}"
    return f"{_bits(to)}={_bits(source)}"
