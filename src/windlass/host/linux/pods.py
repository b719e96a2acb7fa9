"""Pod links: veth pairs between the interface of a Pod and a port of the bridge."""

from __future__ import annotations

import errno
import os
from ipaddress import ip_network

from windlass.host import pod_differences
from windlass.host.linux import ingress, rtnetlink, settings
from windlass.host.linux.adapter_state import AdapterRoute
from windlass.host.linux.namespaces import entered
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.route_messages import mtu_of, mtu_option
from windlass.host.linux.rtnetlink import Link
from windlass.host.pod_differences import listed
from windlass.host.protocol import AttachedLink, HostError, PodLink, attempting
from windlass.model.families import Family, IPAddress, IPNetwork

_LOOPBACK = 1
_STATIC = 4  # RTPROT_STATIC
_ALIAS = "windlass Pod "  # marks host interfaces of Pods; interface and namespace of the Pod follow


def attach(host: Netlink, wanted: PodLink) -> None:
    existing = rtnetlink.link(host, wanted.host_interface)
    if existing is not None:
        if not check(host, wanted):
            return
        _delete(host, existing)  # left by an earlier attempt
    try:
        _create(host, wanted)
    except (HostError, OSError):
        detach(host, wanted.host_interface)
        raise


def detach(host: Netlink, host_interface: str) -> None:
    existing = rtnetlink.link(host, host_interface)
    if existing is not None:
        _delete(host, existing)


def check(host: Netlink, wanted: PodLink) -> tuple[str, ...]:
    link = rtnetlink.link(host, wanted.host_interface)
    if link is None:
        return (f"there is no interface {wanted.host_interface}",)
    found = []
    if link.alias != _alias(wanted) or not link.up:
        found.append(f"{link.name} is not up for {wanted.interface} in {wanted.namespace}")
    if ingress.is_closed(host, link.index) != wanted.userspace:
        found.append(f"{link.name}: the kernel {'gets' if wanted.userspace else 'does not get'} incoming packets")
    try:
        with entered(wanted.namespace), Netlink() as pod:
            found += _differences_in_pod(pod, wanted, link.peer)
    except FileNotFoundError:
        found.append(f"there is no namespace {wanted.namespace}")
    return tuple(found)


def attached(host: Netlink) -> tuple[AttachedLink, ...]:
    found = []
    for link in rtnetlink.links(host):
        if link.alias.startswith(_ALIAS):
            interface, _, namespace = link.alias.removeprefix(_ALIAS).partition(" ")
            found.append(AttachedLink(link.name, interface, namespace))
    return tuple(sorted(found, key=lambda link: link.host_interface))


def _create(host: Netlink, wanted: PodLink) -> None:
    where = f"{wanted.interface} in the Pod's namespace {wanted.namespace}"
    with attempting(f"enter {wanted.namespace}"):
        namespace = os.open(wanted.namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with attempting(f"create {where}"):
            name, peer = wanted.host_interface, wanted.interface
            rtnetlink.add_veth(host, name, peer, namespace, peer_mac=wanted.mac, mtu=wanted.link_mtu)
    finally:
        os.close(namespace)
    with attempting(f"set up {where}"), entered(wanted.namespace), Netlink() as pod:
        _set_up_in_pod(pod, wanted, where)
    with attempting(f"set up {wanted.host_interface}"):
        _set_up_on_host(host, wanted)


def _set_up_in_pod(pod: Netlink, wanted: PodLink, where: str) -> None:
    link = _found(pod, wanted.interface)
    rtnetlink.set_link(pod, _LOOPBACK, up=True)
    if wanted.userspace:
        settings.set_offloads(pod, link.name, on=False)
    if settings.has(Family.IPV6, link.name):
        if any(address.version == 6 for address in wanted.addresses):
            settings.set_sysctl(Family.IPV6, link.name, "disable_ipv6", 0)  # a runtime may have set it
        settings.set_sysctl(Family.IPV6, link.name, "accept_ra", 0)
        settings.set_sysctl(Family.IPV6, link.name, "accept_dad", 0)  # only the switch is at the other end
    rtnetlink.set_link(pod, link.index, up=True)
    for address in wanted.addresses:
        with attempting(f"add address {address} to {where}"):
            rtnetlink.add_address(pod, link.index, address, connected_route=False)
            rtnetlink.add_route(pod, link.index, _route(address.network, wanted))
    for gateway in wanted.gateways:
        with attempting(f"add the default route through {gateway} to {where}"):
            everywhere = ip_network("0.0.0.0/0" if gateway.version == 4 else "::/0")
            rtnetlink.add_route(pod, link.index, _route(everywhere, wanted, gateway))


def _set_up_on_host(host: Netlink, wanted: PodLink) -> None:
    """The host itself does not use this interface: no addresses, no ARP."""
    link = _found(host, wanted.host_interface)
    if settings.has(Family.IPV6, link.name):
        settings.set_sysctl(Family.IPV6, link.name, "disable_ipv6", 1)
    if wanted.userspace:
        ingress.close(host, link.index)
    rtnetlink.set_link(host, link.index, up=True, arp=False, alias=_alias(wanted))


def _found(netlink: Netlink, name: str) -> Link:
    link = rtnetlink.link(netlink, name)
    if link is None:
        raise OSError(errno.ENODEV, "the interface has disappeared")
    return link


def _alias(wanted: PodLink) -> str:
    return f"{_ALIAS}{wanted.interface} {wanted.namespace}"


def _route(destination: IPNetwork, wanted: PodLink, via: IPAddress | None = None) -> AdapterRoute:
    """A route with the Pods' MTU. The link's may be larger: packets that came without a tunnel have the NIC's MTU."""
    options = mtu_option(wanted.mtu) if wanted.mtu < wanted.link_mtu else b""
    return AdapterRoute(destination, via, protocol=_STATIC, options=options)


def _delete(host: Netlink, link: Link) -> None:
    if link.kind != "veth":
        raise HostError(f"{link.name} is not a Pod link but an interface of kind {link.kind}: it was not changed")
    rtnetlink.delete_link(host, link.index)


def _differences_in_pod(pod: Netlink, wanted: PodLink, index: int) -> list[str]:
    link = rtnetlink.link(pod, wanted.interface)
    if link is None or link.index != index:
        return [f"the other end of {wanted.host_interface} is not {wanted.interface} in {wanted.namespace}"]
    addresses = (address for _, address in rtnetlink.addresses(pod, index))
    routes = [found.route for found in rtnetlink.routes(pod, index=index)]
    by_gateway = [route for route in routes if route.via is not None and route.destination.prefixlen == 0]
    gateways = (route.via for route in by_gateway if route.via is not None)
    mtus = {min(mtu_of(route) or link.mtu, link.mtu) for route in by_gateway} or {link.mtu}
    compared = {
        "state": ("up" if link.up else "down", "up"),
        "MAC": (link.mac, wanted.mac),
        # Compare the MTU of the routes: only links from an earlier version of Windlass have the Pods' MTU on the link.
        "MTU": (", ".join(map(str, sorted(mtus))), str(wanted.mtu)),
        "addresses": (listed(addresses), listed(wanted.addresses)),
        "gateways": (listed(gateways), listed(wanted.gateways)),
    }
    if wanted.userspace:
        compared["offloads"] = ("on" if settings.offloads(pod, link.name) else "off", "off")
    return pod_differences.sentences(wanted, compared)
