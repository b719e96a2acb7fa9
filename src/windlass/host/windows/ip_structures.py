"""The structures of IP Helper that Windlass reads and writes, for x64, as netioapi.h declares them.

Only layouts: `ip_helper` has the calls. The sizes are checked when this module is imported, because Windows would write
beyond a structure that is too small.
"""

from __future__ import annotations

from ctypes import (
    Array,
    Structure,
    Union,
    c_byte,
    c_ubyte,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    c_wchar,
    c_wchar_p,
    sizeof,
)
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network

from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork

AF_INET, AF_INET6 = 2, 23
FAMILIES = {AF_INET: Family.IPV4, AF_INET6: Family.IPV6}
NUMBERS = {family: number for number, family in FAMILIES.items()}


class SockaddrIn(Structure):
    _fields_ = (("family", c_uint16), ("port", c_uint16), ("address", c_ubyte * 4), ("zero", c_byte * 8))


class SockaddrIn6(Structure):
    _fields_ = (
        ("family", c_uint16),
        ("port", c_uint16),
        ("flow", c_uint32),
        ("address", c_ubyte * 16),
        ("scope", c_uint32),
    )


class SockaddrInet(Union):
    _fields_ = (("v4", SockaddrIn), ("v6", SockaddrIn6), ("family", c_uint16))

    @property
    def ip(self) -> IPAddress:
        return IPv4Address(bytes(self.v4.address)) if self.family == AF_INET else IPv6Address(bytes(self.v6.address))

    @ip.setter
    def ip(self, ip: IPAddress) -> None:
        if ip.version == 4:
            self.v4 = SockaddrIn(AF_INET, address=_octets(ip.packed))
        else:
            self.v6 = SockaddrIn6(AF_INET6, address=_octets(ip.packed))


class AddressPrefix(Structure):
    _fields_ = (("prefix", SockaddrInet), ("length", c_ubyte))


class ForwardRow(Structure):
    """MIB_IPFORWARD_ROW2: a route."""

    _fields_ = (
        ("luid", c_uint64),
        ("index", c_uint32),
        ("destination_prefix", AddressPrefix),
        ("next_hop", SockaddrInet),
        ("site_prefix_length", c_ubyte),
        ("valid_lifetime", c_uint32),
        ("preferred_lifetime", c_uint32),
        ("metric", c_uint32),
        ("protocol", c_uint32),
        ("loopback", c_ubyte),
        ("autoconfigure", c_ubyte),
        ("publish", c_ubyte),
        ("immortal", c_ubyte),
        ("age", c_uint32),
        ("origin", c_uint32),
    )

    @property
    def destination(self) -> IPNetwork:
        prefix = self.destination_prefix
        return ip_network((prefix.prefix.ip, prefix.length))

    @property
    def via(self) -> IPAddress | None:
        """None: the destination is on the link."""
        return None if self.next_hop.ip.is_unspecified else self.next_hop.ip


class NeighbourRow(Structure):
    """MIB_IPNET_ROW2."""

    _fields_ = (
        ("address", SockaddrInet),
        ("index", c_uint32),
        ("luid", c_uint64),
        ("physical_address", c_ubyte * 32),
        ("physical_address_length", c_uint32),
        ("state", c_uint32),
        ("flags", c_ubyte),
        ("reachability_time", c_uint32),
    )

    @property
    def mac(self) -> str:
        return mac_text(self.physical_address, self.physical_address_length)


class AddressRow(Structure):
    """MIB_UNICASTIPADDRESS_ROW."""

    _fields_ = (
        ("address", SockaddrInet),
        ("luid", c_uint64),
        ("index", c_uint32),
        ("prefix_origin", c_uint32),
        ("suffix_origin", c_uint32),
        ("valid_lifetime", c_uint32),
        ("preferred_lifetime", c_uint32),
        ("prefix_length", c_ubyte),
        ("skip_as_source", c_ubyte),
        ("dad_state", c_uint32),
        ("scope", c_uint32),
        ("created", c_uint64),
    )

    @property
    def interface(self) -> IPInterface:
        return ip_interface((self.address.ip, self.prefix_length))


class IPInterfaceRow(Structure):
    """MIB_IPINTERFACE_ROW: the settings of an interface for one family."""

    _fields_ = (
        ("family", c_uint16),
        ("luid", c_uint64),
        ("index", c_uint32),
        ("max_reassembly_size", c_uint32),
        ("identifier", c_uint64),
        ("min_advertisement_interval", c_uint32),
        ("max_advertisement_interval", c_uint32),
        ("advertising", c_ubyte),
        ("forwarding", c_ubyte),
        ("weak_host_send", c_ubyte),
        ("weak_host_receive", c_ubyte),
        ("automatic_metric", c_ubyte),
        ("flags", c_ubyte * 4),
        ("router_discovery", c_uint32),
        ("dad_transmits", c_uint32),
        ("times", c_uint32 * 3),
        ("link_local_behaviour", c_uint32),
        ("link_local_timeout", c_uint32),
        ("zones", c_uint32 * 16),
        ("site_prefix_length", c_uint32),
        ("metric", c_uint32),
        ("mtu", c_uint32),
        ("connected", c_ubyte * 4),
        ("reachable_time", c_uint32),
        ("offloads", c_ubyte * 2),
        ("disable_default_routes", c_ubyte),
    )


class LinkRow(Structure):
    """MIB_IF_ROW2: an interface. The fields after the status are not used."""

    _fields_ = (
        ("luid", c_uint64),
        ("index", c_uint32),
        ("guid", c_ubyte * 16),
        ("alias", c_wchar * 257),
        ("description", c_wchar * 257),
        ("physical_address_length", c_uint32),
        ("physical_address", c_ubyte * 32),
        ("permanent_address", c_ubyte * 32),
        ("mtu", c_uint32),
        ("type", c_uint32),
        ("kinds", c_uint32 * 5),
        ("flags", c_ubyte),
        ("oper_status", c_uint32),
        ("admin_status", c_uint32),
        ("rest", c_uint64 * 23),
    )

    @property
    def mac(self) -> str:
        return mac_text(self.physical_address, self.physical_address_length)


class AdapterAddresses(Structure):
    """IP_ADAPTER_ADDRESSES, of which only these fields are used."""

    _fields_ = (
        ("length", c_uint32),
        ("index", c_uint32),
        ("next", c_void_p),
        ("pointers", c_void_p * 7),
        ("friendly_name", c_wchar_p),
        ("numbers", c_uint32 * 24),
        ("first_prefix", c_void_p),
        ("speeds", c_uint64 * 2),
        ("more_pointers", c_void_p * 2),
        ("metrics", c_uint32 * 2),
        ("luid", c_uint64),
        ("dhcp_server", c_uint64 * 2),
        ("compartment", c_uint32),
    )


def mac_text(octets: Array[c_ubyte], length: int) -> str:
    return ":".join(f"{octet:02x}" for octet in octets[:length])


def _octets(packed: bytes) -> Array[c_ubyte]:
    return (c_ubyte * len(packed))(*packed)


# The size and some offsets of each structure, by Microsoft's compiler.
_LAYOUTS: dict[type[Structure | Union], tuple[int, dict[str, int]]] = {
    SockaddrInet: (28, {}),
    AddressPrefix: (32, {"length": 28}),
    ForwardRow: (104, {"destination_prefix": 12, "next_hop": 44, "valid_lifetime": 76, "metric": 84, "origin": 100}),
    NeighbourRow: (88, {"index": 28, "luid": 32, "physical_address": 40, "state": 76}),
    AddressRow: (80, {"luid": 32, "index": 40, "prefix_length": 60, "skip_as_source": 61, "dad_state": 64}),
    IPInterfaceRow: (168, {"index": 16, "forwarding": 41, "site_prefix_length": 144, "metric": 148, "mtu": 152}),
    AdapterAddresses: (256, {"next": 8, "friendly_name": 72, "first_prefix": 176, "luid": 224, "compartment": 248}),
    LinkRow: (1352, {"alias": 28, "physical_address": 1060, "mtu": 1124, "oper_status": 1156}),
}


def misplaced() -> list[str]:
    """A sentence for each structure whose layout differs on this platform."""
    found = []
    for kind, (size, offsets) in _LAYOUTS.items():
        if sizeof(kind) != size:
            found.append(f"{kind.__name__} has {sizeof(kind)} bytes instead of {size}")
        for field, offset in offsets.items():
            if (actual := getattr(kind, field).offset) != offset:
                found.append(f"{kind.__name__}.{field} is at {actual} instead of {offset}")
    return found


if problems := misplaced():
    raise ImportError("; ".join(problems))
