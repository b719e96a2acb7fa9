"""How a Pod's link differs from the desired one, in words. Pure; for every host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.host.protocol import PodLink
from windlass.model.families import IPAddress, IPInterface


def listed(values: Iterable[IPAddress | IPInterface]) -> str:
    return ", ".join(sorted(map(str, values)))


def sentences(wanted: PodLink, compared: Mapping[str, tuple[str, str]]) -> list[str]:
    """`compared`: what each property is, and what it should be."""
    return [
        f"{wanted.interface} in {wanted.namespace}: {what} {is_ or 'none'} instead of {should_be or 'none'}"
        for what, (is_, should_be) in compared.items()
        if is_ != should_be
    ]
