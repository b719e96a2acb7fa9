"""What the temporary machines of all hosts share: `ip`, to check the host and to act as another program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def entries(said: str) -> list[dict[str, Any]]:
    """The output of `ip -json`."""
    return [entry for entry in json.loads(said or "[]") if entry]


class IpMachine:
    ip: Callable[..., str]  # runs `ip` on this machine; the test fails if `ip` fails
    bridge_lines: str  # what makes the bridge interface

    def make_bridge(self) -> None:
        self.ip("-batch", "-", stdin=self.bridge_lines)

    def remove_bridge(self) -> None:
        self.ip("link", "delete", "br-int")

    def add_foreign_route(self, destination: str) -> None:
        self.ip("route", "add", destination, "dev", "gw-far")

    def has_route(self, destination: str) -> bool:
        return bool(entries(self.ip("-json", "route", "show", destination)))

    def take_route_away(self, destination: str) -> None:
        self.ip("route", "delete", destination)

    def give_address(self, interface: str, address: str) -> None:
        self.ip("address", "add", address, "dev", interface)

    def take_address(self, interface: str, address: str) -> None:
        self.ip("address", "delete", address, "dev", interface)

    def holders(self, address: str) -> set[str]:
        """The interfaces with this address."""
        return {
            link["ifname"]
            for link in entries(self.ip("-json", "address", "show"))
            for info in link["addr_info"]
            if info.get("local") == address
        }
