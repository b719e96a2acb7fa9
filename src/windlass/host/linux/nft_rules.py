"""Rules, chains and expressions of nftables, in the form that its JSON interface takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from windlass.model.families import IPNetwork

Expression = dict[str, object]


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
    """Bits of a packet that no protocol of nftables names."""
    return {"payload": {"base": base, "offset": offset, "len": length}}
