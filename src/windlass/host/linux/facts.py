"""Reads the facts about a Linux host for the preflight checks. Changes nothing."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from windlass.host.linux import datapaths, firewalls, local_ports, rtnetlink, settings, tracking, uplinks
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.records import RecordFile
from windlass.host.linux.route_messages import TABLE_MAIN
from windlass.host.linux.rtnetlink import Link
from windlass.host.preflight import ConntrackUse, Facts
from windlass.host.protocol import HostError

CONFIGURATIONS = Path("/etc/cni/net.d")
_FORMS = frozenset({".conf", ".conflist", ".json"})  # file types that a runtime reads
_MODULES = Path("/lib/modules")
_TUNNELS = ("geneve", "vxlan")
_NETWORK_MANAGER = Path("/run/NetworkManager/devices")
_ETHERNET = 1
_KUBE_PROXY_CHAIN = "KUBE-SERVICES"  # kubelet has KUBE-* chains as well, but not this one
_KUBE_PROXY_METRICS = ("127.0.0.1", 10249)


def gather(
    netlink: Netlink, file: RecordFile, bridge: str, uplink: str | None, configurations: Path = CONFIGURATIONS
) -> Facts:
    """For this NIC; without a name: for the adopted NIC, or else the NIC that the agent will probably take."""
    name = uplink or _probable_uplink(netlink, file, bridge)
    link = rtnetlink.link(netlink, name)
    if link is None:
        raise HostError(f"there is no interface {name}, which should be the uplink")
    chains = firewalls.nftables_chains()
    master = rtnetlink.link(netlink, link.master) if link.master else None
    adapter = uplinks.find(netlink, file, bridge, (), name)
    return Facts(
        uplink=name,
        mtu=link.mtu,
        addresses=tuple(address.interface for address in adapter.addresses),
        ethernet=link.type == _ETHERNET,
        carrier=link.carrier,
        master=master.name if master else "",
        master_kind=master.kind if master else "",
        network_manager=_is_managed(link),
        interfaces=frozenset(found.name for found in rtnetlink.links(netlink)),
        local_ports=local_ports.local(),
        reserved_ports=local_ports.reserved(),
        drop_chains=(*(str(chain) for chain in chains or () if chain.drops_forwarded), *firewalls.legacy_drops()),
        connections=_connections(),
        network_configurations=_network_configurations(configurations),
        kube_proxy=tuple(_kube_proxy(chains or [])),
        missing_modules=frozenset(_missing_modules()),
        nftables=chains is not None,
    )


def _probable_uplink(netlink: Netlink, file: RecordFile, bridge: str) -> str:
    """The adopted NIC, else the NIC of the best default route."""
    record = file.load()
    if record is not None and record.bridge == bridge:
        return record.uplink.name
    defaults = [
        found
        for found in rtnetlink.routes(netlink)
        if found.route.destination.prefixlen == 0 and found.route.table in {0, TABLE_MAIN} and found.index
    ]
    for found in sorted(defaults, key=lambda found: (found.route.destination.version, found.route.metric)):
        link = rtnetlink.link(netlink, found.index)
        if link is not None and link.name != bridge:
            return link.name
    raise HostError(
        "the NIC cannot be determined, because this host has no default route: set `uplink` in the configuration"
    )


def _is_managed(link: Link) -> bool:
    try:
        return "managed=true" in (_NETWORK_MANAGER / str(link.index)).read_text().splitlines()
    except OSError:
        return False


def _connections() -> ConntrackUse | None:
    try:
        limit, used = (int(settings.read_file(f"netfilter/nf_conntrack_{what}")) for what in ("max", "count"))
    except FileNotFoundError:
        return None
    if limit == 0:
        return None  # no limit
    return ConntrackUse(limit, used, settings.is_writable(tracking.LIMIT))


def _network_configurations(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in folder.iterdir() if path.suffix in _FORMS))
    except OSError:
        return ()


def _kube_proxy(chains: list[firewalls.FirewallChain]) -> Iterator[str]:
    tables = sorted({chain.table for chain in chains if chain.table in {"ip kube-proxy", "ip6 kube-proxy"}})
    yield from (f"nftables table {table}" for table in tables)
    if any(chain.name == _KUBE_PROXY_CHAIN for chain in chains) or firewalls.legacy_mentions(_KUBE_PROXY_CHAIN):
        yield f"iptables chain {_KUBE_PROXY_CHAIN}"
    mode = _proxy_mode()
    if mode in {"iptables", "ipvs", "nftables"}:
        yield f"a process at {_KUBE_PROXY_METRICS[0]}:{_KUBE_PROXY_METRICS[1]}, mode {mode}"


def _proxy_mode() -> str:
    """The mode that kube-proxy reports. Windlass reports `windlass` at the same address."""
    connection = http.client.HTTPConnection(*_KUBE_PROXY_METRICS, timeout=1)
    try:
        connection.request("GET", "/proxyMode")
        return connection.getresponse().read(100).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _missing_modules() -> Iterator[str]:
    """Asks the kernel for openvswitch, which loads the module; looks for the others in the list of modules."""
    if not datapaths.exists():
        yield "openvswitch"
    folder = _MODULES / os.uname().release
    listed = "".join(_read(folder / name) for name in ("modules.dep", "modules.builtin"))
    for module in _TUNNELS if listed else ():  # a container has no list of modules
        if f"/{module}.ko" not in listed:
            yield module


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""
