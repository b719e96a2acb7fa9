"""Removes everything of Windlass from a Linux host, except what `uplinks` gives back to the NIC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from windlass.host.linux import (
    datapaths,
    ingress,
    packet_filters,
    pods,
    rtnetlink,
    service_listings,
    service_tables,
    settings,
)
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.nftables import Nftables
from windlass.host.linux.rtnetlink import Link
from windlass.host.plans import HostNames
from windlass.host.protocol import HostError, attempting

_KERNEL_TUNNELS = ("genev_sys_6081", "vxlan_sys_4789")  # ovs-vswitchd creates them again if it needs them
_USERSPACE_DATAPATH = "ovs-netdev"  # the interface of the userspace datapath


def clean(netlink: Netlink, nftables: Nftables, formers: FormerSettings, names: HostNames) -> tuple[str, ...]:
    """Run each step, even if others fail. Returns a sentence for each failure."""
    problems: list[str] = []
    for what, do in _steps(netlink, nftables, names):
        try:
            with attempting(what):
                do()
        except HostError as error:
            problems.append(str(error))
    problems += settings.restore(netlink, formers)
    if not problems:
        with attempting("remove the record of former settings"):
            formers.forget()
    return tuple(problems)


def detach(netlink: Netlink, names: HostNames) -> None:
    """Take the NIC and the bridge interface out of the kernel datapath, which keeps forwarding without ovs-vswitchd."""
    with attempting(f"take {names.uplink} and {names.bridge} out of the datapath"):
        for name in (names.uplink, names.bridge, names.gateway):
            datapaths.remove_port(netlink, name)
        for name in _KERNEL_TUNNELS:
            if (link := rtnetlink.link(netlink, name)) is not None:
                rtnetlink.delete_link(netlink, link.index)


def _steps(netlink: Netlink, nftables: Nftables, names: HostNames) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "remove the nftables table of Services", partial(_remove_table, nftables)
    for rule in list(rtnetlink.mark_rules(netlink)):
        yield (
            f"remove the {rule.family} rule for table {rule.table}",
            partial(rtnetlink.delete_mark_rule, netlink, rule),
        )
    for found in list(rtnetlink.routes(netlink, protocol=rtnetlink.PROTOCOL)):
        yield f"remove {found.route}", partial(rtnetlink.delete_route, netlink, found.index, found.route)
    for link in pods.attached(netlink):
        yield f"remove the Pod link {link.host_interface}", partial(pods.detach, netlink, link.host_interface)
    uplink = rtnetlink.link(netlink, names.uplink)
    yield f"remove the datapath {datapaths.NAME}", partial(datapaths.remove_if_unused, netlink)
    orphans = _orphans(netlink, names)
    for orphan in orphans:
        yield f"remove {orphan.name}", partial(rtnetlink.delete_link, netlink, orphan.index)
    if orphans and uplink is not None:
        promiscuous = partial(rtnetlink.set_link, netlink, uplink.index, promiscuous=False)
        yield f"end promiscuous mode of {names.uplink}", promiscuous
    if uplink is not None:
        yield f"remove the ingress filter of {names.uplink}", partial(ingress.open_again, netlink, uplink.index)
        yield f"remove the clsact hook of {names.uplink}", partial(packet_filters.remove_hook, netlink, uplink.index)


def _orphans(netlink: Netlink, names: HostNames) -> list[Link]:
    """Interfaces that a killed ovs-vswitchd (userspace) has left: no process has their other end."""
    links = (rtnetlink.link(netlink, name) for name in (names.bridge, names.gateway, _USERSPACE_DATAPATH))
    return [link for link in links if link is not None and link.kind == "tun" and not link.carrier]


def _remove_table(nftables: Nftables) -> None:
    if service_listings.is_listed(nftables.run(service_tables.LIST_TABLES)):
        nftables.run(service_tables.deleted())
