"""Reads and changes settings of an interface (sysctl files, ethtool, link), as `InterfaceSettings`.

Sysctl files are those of the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import addressof, create_string_buffer
from functools import partial
from pathlib import Path

from windlass.host.linux import ingress, rtnetlink
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.rtnetlink import Link
from windlass.host.plans import InterfaceSettings
from windlass.host.port_ranges import parse, port_set, text
from windlass.model.families import Family
from windlass.pipeline.snat_ports import HOST_RESERVED

# In an unprivileged container /proc/sys is read-only, and that of the Node is mounted elsewhere. Any path to it shows
# the settings of the network namespace of the reader.
SYSCTLS_VARIABLE = "WINDLASS_SYSCTLS"
_NET = Path(os.environ.get(SYSCTLS_VARIABLE) or "/proc/sys/net")
_CONF = {Family.IPV4: _NET / "ipv4" / "conf", Family.IPV6: _NET / "ipv6" / "conf"}
RESERVED_PORTS = "ipv4/ip_local_reserved_ports"
_STRICT, _LOOSE = 1, 2  # values of rp_filter
_SIOCETHTOOL = 0x8946
# The commands to read and to set each of: transmit checksums, TSO, GRO.
_OFFLOADS = ((0x16, 0x17), (0x1E, 0x1F), (0x2B, 0x2C))


def read(netlink: Netlink, link: Link) -> InterfaceSettings:
    return InterfaceSettings(
        link.name,
        up=link.up,
        mac=link.mac,
        mtu=link.mtu,
        forwards=frozenset(family for family in Family if _forwards(link.name, family)),
        accepts_own_source=_accepts_own_source(link.name),
        offloads=offloads(netlink, link.name),
        kernel_ingress=not ingress.is_closed(netlink, link.index),
    )


def write(netlink: Netlink, formers: FormerSettings, link: Link, wanted: InterfaceSettings) -> list[str]:
    """Change each setting, even if others fail. Returns a sentence for each failure."""
    problems = []
    for what, do in _steps(netlink, formers, link, wanted):
        try:
            do()
        except OSError as error:
            problems.append(f"{link.name}: could not set {what}: {error.strerror}")
    return problems


def restore(netlink: Netlink, formers: FormerSettings) -> list[str]:
    """Restore each setting, unless another program changed it since; from a list, remove the part of Windlass only."""
    problems = []
    for name, was, ours in formers.sysctls:
        try:
            now = read_file(name)
            if name == RESERVED_PORTS:
                given_back = port_set(HOST_RESERVED) & ~port_set(parse(was))
                (_NET / name).write_text(text(port_set(parse(now)) & ~given_back) + "\n")
            elif now == ours:
                (_NET / name).write_text(was)
        except FileNotFoundError:
            continue  # its interface is gone
        except OSError as error:
            problems.append(f"could not restore {name} to {was}: {error.strerror}")
    for interface, values in formers.offloads.items():
        try:
            for (_, command), value in zip(_OFFLOADS, values, strict=True):
                _ethtool(netlink, interface, command, value)
        except OSError as error:
            if error.errno != errno.ENODEV:
                problems.append(f"could not restore the offloads of {interface}: {error.strerror}")
    return problems


def _steps(
    netlink: Netlink, formers: FormerSettings, link: Link, wanted: InterfaceSettings
) -> Iterator[tuple[str, Callable[[], None]]]:
    set_link = partial(rtnetlink.set_link, netlink, link.index)
    if wanted.mac is not None:
        yield f"its MAC to {wanted.mac}", partial(set_link, mac=wanted.mac)
    if wanted.mtu is not None:
        yield f"its MTU to {wanted.mtu}", partial(set_link, mtu=wanted.mtu)
    for family in sorted(wanted.forwards, key=str):
        yield f"{family} forwarding", partial(_forward, formers, link.name, family)
    if wanted.accepts_own_source is not None:
        accept = wanted.accepts_own_source
        yield "accept_local and rp_filter", partial(_accept_own_source, formers, link.name, accept=accept)
    if wanted.offloads is not None:
        yield "its offloads", partial(_change_offloads, netlink, formers, link.name, on=wanted.offloads)
    if wanted.kernel_ingress is not None:
        change = ingress.open_again if wanted.kernel_ingress else ingress.close
        yield "its ingress filter", partial(change, netlink, link.index)
    if wanted.up is not None:  # after all other settings
        yield "it up" if wanted.up else "it down", partial(set_link, up=wanted.up)


def read_file(name: str) -> str:
    """The content of a sysctl file, by its name below `net`."""
    return (_NET / name).read_text().strip()


def is_writable(name: str) -> bool:
    """False also if the file does not exist."""
    return os.access(_NET / name, os.W_OK)


def change_file(formers: FormerSettings, name: str, value: int | str) -> None:
    """Set a sysctl by its name below `net`, and record its former value first."""
    was = read_file(name)
    if was != str(value):
        formers.remember_sysctl(name, was, str(value))
        (_NET / name).write_text(str(value))


def sysctl(family: Family, interface: str, name: str) -> int:
    return int((_CONF[family] / interface / name).read_text())


def set_sysctl(family: Family, interface: str, name: str, value: int) -> None:
    (_CONF[family] / interface / name).write_text(str(value))


def change_sysctl(formers: FormerSettings, family: Family, interface: str, name: str, value: int) -> None:
    """Like `set_sysctl`, for a setting that must be restored on release: records its former value first."""
    change_file(formers, str((_CONF[family] / interface / name).relative_to(_NET)), value)


def has(family: Family, interface: str) -> bool:
    """False for IPv6 if it is disabled in the kernel, or if the MTU is too small for it."""
    return (_CONF[family] / interface).is_dir()


def offloads(netlink: Netlink, interface: str) -> bool:
    """The device does at least one of the offloads."""
    return any(_ethtool(netlink, interface, command, 0) for command, _ in _OFFLOADS)


def set_offloads(netlink: Netlink, interface: str, *, on: bool) -> None:
    for _, command in _OFFLOADS:
        _ethtool(netlink, interface, command, int(on))


def _change_offloads(netlink: Netlink, formers: FormerSettings, interface: str, *, on: bool) -> None:
    formers.remember_offloads(interface, [_ethtool(netlink, interface, command, 0) for command, _ in _OFFLOADS])
    set_offloads(netlink, interface, on=on)


def _forwards(interface: str, family: Family) -> bool:
    return has(family, interface) and all(
        sysctl(family, where, "forwarding") for where in _forwarding(interface, family)
    )


def _forward(formers: FormerSettings, interface: str, family: Family) -> None:
    if family is Family.IPV6 and not sysctl(family, "all", "forwarding"):
        # With forwarding, the kernel ignores router advertisements unless accept_ra is 2: keep the routes from them.
        for other in _interfaces(family):
            with suppress(FileNotFoundError):  # the interface is gone
                if sysctl(family, other, "accept_ra") == 1:
                    change_sysctl(formers, family, other, "accept_ra", 2)
    for where in _forwarding(interface, family):
        change_sysctl(formers, family, where, "forwarding", 1)


def _forwarding(interface: str, family: Family) -> tuple[str, ...]:
    # For IPv6, `forwarding` of an interface controls router advertisements; that of `all` controls forwarding.
    return ("all", interface) if family is Family.IPV6 else (interface,)


def _accepts_own_source(interface: str) -> bool:
    filtered = any(sysctl(Family.IPV4, where, "rp_filter") for where in ("all", interface))
    return bool(sysctl(Family.IPV4, interface, "accept_local")) and not filtered


def _accept_own_source(formers: FormerSettings, interface: str, *, accept: bool) -> None:
    change_sysctl(formers, Family.IPV4, interface, "accept_local", int(accept))
    if accept:
        _free_from_all(formers)
        change_sysctl(formers, Family.IPV4, interface, "rp_filter", 0)


def loosen_reverse_path(formers: FormerSettings, interface: str) -> None:
    """Accept packets also if the route to their source leads to another interface."""
    if max(sysctl(Family.IPV4, where, "rp_filter") for where in ("all", interface)) == _STRICT:
        _free_from_all(formers)
        change_sysctl(formers, Family.IPV4, interface, "rp_filter", _LOOSE)


def _free_from_all(formers: FormerSettings) -> None:
    """Set rp_filter of `all` to 0, and that of each interface to the value that applied before. The kernel applies the
    larger value of `all` and the interface, so this lets one interface have a different value.
    """
    of_all = sysctl(Family.IPV4, "all", "rp_filter")
    if not of_all:
        return
    for other in _interfaces(Family.IPV4):
        with suppress(FileNotFoundError):
            if sysctl(Family.IPV4, other, "rp_filter") < of_all:
                change_sysctl(formers, Family.IPV4, other, "rp_filter", of_all)
    change_sysctl(formers, Family.IPV4, "all", "rp_filter", 0)


def _interfaces(family: Family) -> list[str]:
    return [path.name for path in _CONF[family].iterdir() if path.name not in {"all", "default"}]


def _ethtool(netlink: Netlink, interface: str, command: int, value: int) -> int:
    data = create_string_buffer(struct.pack("=II", command, value), 8)
    request = struct.pack("16sP16x", interface.encode(), addressof(data))
    try:
        fcntl.ioctl(netlink.fileno(), _SIOCETHTOOL, request)
    except OSError as error:
        # The device does not have this offload.
        if error.errno != errno.EOPNOTSUPP:
            raise
        return 0
    return int(struct.unpack_from("=I", data.raw, 4)[0])
