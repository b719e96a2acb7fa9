"""Which NIC is the uplink, and what must be known before its addresses move. Pure; for every host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from windlass.host.protocol import HostError
from windlass.model.families import IPAddress

T = TypeVar("T")


def chosen_uplink(
    bridge: str,
    node_ips: Collection[IPAddress],
    holders: AbstractSet[str],
    remembered: str | None,
    record: object,
    *,
    is_adopted: bool,
) -> str:
    """`holders`: interfaces that have a Node IP. `remembered`: the adopted NIC, if there is a record of it.

    `is_adopted`: the bridge interface has a Node IP. `record`: the file of the record, for the error.
    """
    holders = holders - {bridge}
    # The adopted NIC stays the uplink, even if another interface gets a Node IP as well.
    if remembered is not None and (is_adopted or not holders or remembered in holders):
        return remembered
    wanted = ", ".join(map(str, node_ips))
    if len(holders) > 1:
        raise HostError(f"the Node IPs {wanted} are on several interfaces: set `uplink` in the configuration")
    if not holders:
        raise HostError(
            f"no interface except perhaps {bridge} has the Node IP {wanted}, and {record} does not say which one "
            "had it: set `uplink` in the configuration"
        )
    return next(iter(holders))


def both_interfaces(uplink: str, bridge: str, read: Callable[[str], T | None]) -> tuple[T, T]:
    """The interfaces with these names, as `read` finds them."""
    found_uplink, found_bridge = read(uplink), read(bridge)
    if found_uplink is None or found_bridge is None:
        missing = uplink if found_uplink is None else bridge
        raise HostError(f"there is no interface {missing}: {uplink} was not changed")
    return found_uplink, found_bridge


def require_known(
    uplink: str, bridge: str, known: Iterable[IPAddress], node_ips: Collection[IPAddress], record: object
) -> None:
    """`known`: all addresses that belong to the uplink, wherever they are now."""
    found = set(known)
    unknown = [str(ip) for ip in node_ips if ip not in found]
    if unknown:
        raise HostError(
            f"neither {uplink} nor {bridge} nor the record {record} has the Node IP {', '.join(unknown)}: {uplink} "
            "was not changed"
        )
