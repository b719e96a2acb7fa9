"""The items of interfaces as `ip` shows them, and a kernel that refuses a change."""

from __future__ import annotations

from typing import Any

from host_machines import ip_batch

from windlass.host.linux import canaries
from windlass.host.linux.netlink import Netlink

EMPTY: dict[str, Any] = {"addresses": [], "routes": [], "connected": ["fe80::/64"]}


def seen(interface: str) -> dict[str, Any]:
    """The items of an interface, according to `ip`."""
    (link,), routes = ip_batch(f"address show dev {interface}", f"route show table all dev {interface}")
    return {
        "addresses": [
            f"{a['local']}/{a['prefixlen']} brd {a.get('broadcast')}"
            for a in link["addr_info"]
            if a["scope"] == "global"
        ],
        "routes": sorted(
            str({**route, "flags": [flag for flag in route["flags"] if flag != "linkdown"]})
            for route in routes
            if route["protocol"] != "kernel" and route.get("table") != str(canaries.TABLE)
        ),
        "connected": sorted(
            route["dst"] for route in routes if route["protocol"] == "kernel" and route.get("table") != "local"
        ),
    }


class Faulty(Netlink):
    """The real kernel, except that one change is refused."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self.changes = 0
        self._at = at
        self._error = error

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self.changes += 1
        if self.changes == self._at:
            raise self._error
        super().do(kind, body, flags)


class CrashError(BaseException):
    """Simulates a killed process: none of our code runs after this."""
