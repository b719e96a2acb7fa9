"""Router advertisements: once the uplink is a port, the bridge interface hears them, and listens in its place."""

from __future__ import annotations

from contextlib import suppress

from windlass.host.linux import settings
from windlass.model.families import Family

_AS_ROUTER = 2  # accept_ra: even though this host forwards
# What an interface takes from an advertisement; `accept_ra` is decided apart.
_TAKEN = (
    "autoconf",
    "accept_ra_defrtr",
    "accept_ra_pinfo",
    "accept_ra_rtr_pref",
    "accept_ra_rt_info_min_plen",
    "accept_ra_rt_info_max_plen",
    "accept_ra_mtu",
    "use_tempaddr",
)


def listen_like(bridge: str, uplink: str, *, learns: bool) -> None:
    """`learns`: the uplink has routes that routers advertised. If its kernel does not listen, its network manager does;
    but that hears nothing any more, so that the bridge's kernel must.
    """
    if not (settings.has(Family.IPV6, uplink) and settings.has(Family.IPV6, bridge)):
        return
    accepts = settings.sysctl(Family.IPV6, uplink, "accept_ra") or learns
    _copy(bridge, "accept_ra", _AS_ROUTER if accepts else 0)
    for name in _TAKEN:
        with suppress(FileNotFoundError):  # not every kernel has all of them
            _copy(bridge, name, settings.sysctl(Family.IPV6, uplink, name))


def _copy(interface: str, name: str, value: int) -> None:
    if settings.sysctl(Family.IPV6, interface, name) != value:
        settings.set_sysctl(Family.IPV6, interface, name, value)
