"""Router advertisements: the bridge interface receives them in place of an adopted uplink."""

from __future__ import annotations

from contextlib import suppress

from windlass.host.linux import settings
from windlass.model.families import Family

_AS_ROUTER = 2  # accept_ra: accept although this host forwards
# Settings for what an interface accepts from an advertisement, besides `accept_ra`.
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
    """Copy the settings of the uplink to the bridge interface.

    learns: the uplink has routes from advertisements. If the kernel did not accept them, a network manager did. That
    manager no longer receives advertisements, so the kernel must accept them on the bridge interface.
    """
    if not (settings.has(Family.IPV6, uplink) and settings.has(Family.IPV6, bridge)):
        return
    accepts = settings.sysctl(Family.IPV6, uplink, "accept_ra") or learns
    _copy(bridge, "accept_ra", _AS_ROUTER if accepts else 0)
    for name in _TAKEN:
        with suppress(FileNotFoundError):  # a kernel may lack some
            _copy(bridge, name, settings.sysctl(Family.IPV6, uplink, name))


def _copy(interface: str, name: str, value: int) -> None:
    if settings.sysctl(Family.IPV6, interface, name) != value:
        settings.set_sysctl(Family.IPV6, interface, name, value)
