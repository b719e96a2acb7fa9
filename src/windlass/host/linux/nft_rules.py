"""Rules, chains and expressions of nftables, as its JSON interface takes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING

import msgspec

from windlass.model.families import Family, IPAddress, family_of

if TYPE_CHECKING:
    from windlass.model.families import IPNetwork

Expression = dict[str, object]

IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
# Before the chains of other programs at the usual priorities (raw -300, mangle -150, dstnat -100, srcnat 100).
BEFORE_CONNTRACK, BEFORE_ROUTING, DNAT, AFTER_DNAT, SNAT = -310, -160, -110, -90, 90


@dataclass(frozen=True, slots=True)
class Rule:
    why: str
    expressions: tuple[Expression, ...]

    @property
    def comment(self) -> str:
        digest = blake2s(msgspec.json.encode(self.expressions, order="sorted"), digest_size=6).hexdigest()
        return f"{self.why} [{digest}]"


@dataclass(frozen=True, slots=True)
class Chain:
    name: str
    rules: tuple[Rule, ...]
    type: str = ""
    at: str = ""  # the hook
    priority: int = 0

    @property
    def hook(self) -> dict[str, object]:
        return {"type": self.type, "hook": self.at, "prio": self.priority} if self.at else {}

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.name, self.type, self.at, self.priority


RETURN: Expression = {"return": None}
DROP: Expression = {"drop": None}


def is_(left: Expression, right: object) -> Expression:
    return {"match": {"op": "==", "left": left, "right": right}}


def is_not(left: Expression, right: object) -> Expression:
    return {"match": {"op": "!=", "left": left, "right": right}}


def meta(key: str) -> Expression:
    return {"meta": {"key": key}}


def ct(key: str) -> Expression:
    return {"ct": {"key": key}}


def payload(protocol: str, name: str) -> Expression:
    return {"payload": {"protocol": protocol, "field": name}}


def prefix(network: IPNetwork) -> Expression:
    return {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}


def raw(base: str, offset: int, length: int) -> Expression:
    """Bits of a packet for which nftables has no field."""
    return {"payload": {"base": base, "offset": offset, "len": length}}


def comes_in(interface: str) -> Expression:
    return is_(meta("iifname"), interface)


def goes_out(interface: str) -> Expression:
    return is_(meta("oifname"), interface)


def is_to(address: IPAddress) -> Expression:
    return is_(payload(IP[family_of(address)], "daddr"), str(address))


def is_local(field: str) -> Expression:
    """The host itself has the address in this field (saddr, daddr)."""
    return is_({"fib": {"result": "type", "flags": [field]}}, "local")


def is_set(key: Expression, bit: int | str) -> Expression:
    return is_({"&": [key, bit]}, bit)


def set_bit(key: Expression, bit: int) -> Expression:
    return change(key, {"|": [key, bit]})


def change(key: Expression, value: object) -> Expression:
    return {"mangle": {"key": key, "value": value}}


NEW: Expression = {"match": {"op": "in", "left": ct("state"), "right": "new"}}
REPLY = is_(ct("direction"), "reply")
