"""Values of fields as text, in the notation of Open vSwitch."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from windlass.openflow.fields import IN_PORT_PORT, LOCAL_PORT, Field, Notation

_PORT_NAMES = {LOCAL_PORT: "LOCAL", IN_PORT_PORT: "IN_PORT"}
ETH_TYPE_NAMES = {0x0800: "ip", 0x0806: "arp", 0x86DD: "ipv6"}
_CT_STATES = ("new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat")  # from the lowest bit up


def mac_text(value: int) -> str:
    digits = f"{value:012x}"
    return ":".join(digits[i : i + 2] for i in range(0, 12, 2))


def port_text(number: int) -> str:
    return _PORT_NAMES.get(number, str(number))


def value_text(field: Field, value: int) -> str:
    match field.notation:
        case Notation.MAC:
            return mac_text(value)
        case Notation.IPV4:
            return str(IPv4Address(value))
        case Notation.IPV6:
            return str(IPv6Address(value))
        case Notation.HEX:
            return f"{value:#x}"
        case Notation.DECIMAL:
            return str(value)


def ct_state_text(value: int, mask: int) -> str:
    return flags_text(_CT_STATES, value, mask)


def flags_text(names: tuple[str, ...], value: int, mask: int) -> str:
    """`+new-inv`, for the bits of the mask."""
    return "".join(("+" if value >> bit & 1 else "-") + name for bit, name in enumerate(names) if mask >> bit & 1)
