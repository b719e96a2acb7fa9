"""Calls to IP Helper (iphlpapi.dll): interfaces, addresses, routes, neighbours, and notifications.

A refused call raises OSError with Windows' code and text. Callers interpret the rows.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    raise ImportError("IP Helper is only on Windows")

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, WINFUNCTYPE, Structure, byref, c_uint16, c_uint32, c_void_p, cast, sizeof, wintypes
from typing import TypeVar

from windlass.host.windows.ip_structures import (
    FAMILIES,
    NUMBERS,
    AdapterAddresses,
    AddressRow,
    ForwardRow,
    IPInterfaceRow,
    LinkRow,
    NeighbourRow,
)
from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of

LIBRARY = "iphlpapi.dll"
NOT_FOUND, EXISTS, ALREADY_EXISTS = 1168, 5010, 183  # Windows' codes
_GONE = (NOT_FOUND, 2)  # an item, an interface
_ANY_FAMILY = 0
_FOREVER = 0xFFFFFFFF  # a lifetime
_NET_MANAGEMENT = 3  # the protocol of routes that a program adds
_PERMANENT = 6  # the state of a neighbour
_PREFERRED = 4  # the state of an address: skip duplicate address detection
_UP = 1
_ALL_COMPARTMENTS = 0x200 | 0x2 | 0x4 | 0x8  # without anycast and multicast addresses, and DNS servers
_ADAPTERS_BUFFER = 16384  # bytes: the initial size that Microsoft recommends
_BUFFER_TOO_SMALL, _NO_DATA = 111, 232
_TABLE_HEADER = 8  # the count of rows, and padding

R = TypeVar("R", bound=Structure)
Changed = WINFUNCTYPE(None, c_void_p, c_void_p, ctypes.c_int)


class IpHelper:
    def __init__(self, library: str = LIBRARY) -> None:
        self._calls = ctypes.WinDLL(library)

    # --- interfaces ---------------------------------------------------------------------------------------------------

    def links(self) -> list[LinkRow]:
        return _table(self._calls, "GetIfTable2", LinkRow)

    def link(self, name: str) -> LinkRow | None:
        return next((link for link in self.links() if link.alias == name), None)

    def link_in_any_compartment(self, name: str) -> tuple[int, int] | None:
        """The index and the compartment of an interface; interfaces of Pods are in other compartments."""
        size = c_uint32(_ADAPTERS_BUFFER)
        while True:
            buffer = ctypes.create_string_buffer(size.value)
            try:
                _call(self._calls, "GetAdaptersAddresses", _ANY_FAMILY, _ALL_COMPARTMENTS, None, buffer, byref(size))
                break
            except OSError as error:
                if error.winerror == _NO_DATA:
                    return None
                if error.winerror != _BUFFER_TOO_SMALL:
                    raise
        at = ctypes.addressof(buffer)
        while at:
            adapter = AdapterAddresses.from_address(at)
            if adapter.friendly_name == name:
                return adapter.index, adapter.compartment
            at = adapter.next
        return None

    @contextmanager
    def in_compartment(self, compartment: int) -> Iterator[None]:
        """Within the block, the calls of this thread use this compartment."""
        before = self._calls.GetCurrentThreadCompartmentId()
        _call(self._calls, "SetCurrentThreadCompartmentId", c_uint32(compartment))
        try:
            yield
        finally:
            self._calls.SetCurrentThreadCompartmentId(c_uint32(before))

    def settings(self, index: int, family: Family) -> IPInterfaceRow:
        row = IPInterfaceRow()
        self._calls.InitializeIpInterfaceEntry(byref(row))
        row.family, row.index = NUMBERS[family], index
        _call(self._calls, "GetIpInterfaceEntry", byref(row))
        return row

    def change_settings(
        self,
        index: int,
        family: Family,
        *,
        forwarding: bool | None = None,
        mtu: int | None = None,
        metric: int | None = None,
    ) -> None:
        row = self.settings(index, family)
        row.site_prefix_length = 0  # Windows refuses its own value for IPv4
        if forwarding is not None:
            row.forwarding = forwarding
        if mtu is not None:
            row.mtu = mtu
        if metric is not None:
            row.automatic_metric, row.metric = False, metric
        _call(self._calls, "SetIpInterfaceEntry", byref(row))

    # --- addresses ----------------------------------------------------------------------------------------------------

    def addresses(self) -> list[AddressRow]:
        return _table(self._calls, "GetUnicastIpAddressTable", AddressRow, _ANY_FAMILY)

    def add_address(self, index: int, address: IPInterface) -> None:
        """Not an error if the interface has the address already."""
        row = self._address(index, address)
        row.prefix_length = address.network.prefixlen
        row.valid_lifetime = row.preferred_lifetime = _FOREVER
        row.dad_state = _PREFERRED
        with _unless(EXISTS, ALREADY_EXISTS, holds=lambda: _has_address(self.addresses(), index, address)):
            _call(self._calls, "CreateUnicastIpAddressEntry", byref(row))

    def delete_address(self, index: int, address: IPInterface) -> None:
        with _unless(*_GONE):
            _call(self._calls, "DeleteUnicastIpAddressEntry", byref(self._address(index, address)))

    def _address(self, index: int, address: IPInterface) -> AddressRow:
        row = AddressRow()
        self._calls.InitializeUnicastIpAddressEntry(byref(row))
        row.index = index
        row.address.ip = address.ip
        return row

    # --- routes -------------------------------------------------------------------------------------------------------

    def routes(self) -> list[ForwardRow]:
        return _table(self._calls, "GetIpForwardTable2", ForwardRow, _ANY_FAMILY)

    def add_route(self, index: int, destination: IPNetwork, via: IPAddress | None, metric: int) -> None:
        """Not an error if the interface has the route already."""
        row = self._route(index, destination, via)
        row.metric = metric
        with _unless(EXISTS, ALREADY_EXISTS, holds=lambda: _has_route(self.routes(), index, destination, via)):
            _call(self._calls, "CreateIpForwardEntry2", byref(row))

    def delete_route(self, index: int, destination: IPNetwork, via: IPAddress | None) -> None:
        with _unless(*_GONE):
            _call(self._calls, "DeleteIpForwardEntry2", byref(self._route(index, destination, via)))

    def _route(self, index: int, destination: IPNetwork, via: IPAddress | None) -> ForwardRow:
        row = ForwardRow()
        self._calls.InitializeIpForwardEntry(byref(row))
        row.index = index
        row.destination_prefix.prefix.ip = destination.network_address
        row.destination_prefix.length = destination.prefixlen
        row.next_hop.ip = type(destination.network_address)(0) if via is None else via
        row.protocol = _NET_MANAGEMENT
        return row

    # --- neighbours ---------------------------------------------------------------------------------------------------

    def neighbours(self) -> list[NeighbourRow]:
        """The entries that a program has set. Windows sets permanent entries for multicast and broadcast itself."""
        rows = _table(self._calls, "GetIpNetTable2", NeighbourRow, _ANY_FAMILY)
        return [row for row in rows if row.state == _PERMANENT and row.address.family in FAMILIES and _is_unicast(row)]

    def set_neighbour(self, index: int, address: IPAddress, mac: str) -> None:
        self.delete_neighbour(index, address)
        row = _neighbour(index, address)
        octets = bytes.fromhex(mac.replace(":", ""))
        row.physical_address[: len(octets)] = octets
        row.physical_address_length = len(octets)
        row.state = _PERMANENT
        _call(self._calls, "CreateIpNetEntry2", byref(row))

    def delete_neighbour(self, index: int, address: IPAddress) -> None:
        with _unless(*_GONE):
            _call(self._calls, "DeleteIpNetEntry2", byref(_neighbour(index, address)))

    # --- changes ------------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, changed: Callable[[], object]) -> Iterator[None]:
        """Within the block, Windows calls `changed` in its own thread whenever anything above has changed."""
        callback = Changed(lambda _context, _row, _kind: changed() and None)
        handles = []
        try:
            for call in ("NotifyIpInterfaceChange", "NotifyUnicastIpAddressChange", "NotifyRouteChange2"):
                handle = wintypes.HANDLE()
                _call(self._calls, call, c_uint16(_ANY_FAMILY), callback, None, False, byref(handle))
                handles.append(handle)
            yield
        finally:
            for handle in handles:  # each call waits for a running callback
                self._calls.CancelMibChangeNotify2(handle)


def is_up(link: LinkRow) -> bool:
    return bool(link.oper_status == _UP)


def family(row: AddressRow | NeighbourRow) -> Family:
    return family_of(row.address.ip)


def _has_address(rows: list[AddressRow], index: int, address: IPInterface) -> bool:
    return any(row.index == index and row.interface == address for row in rows)


def _has_route(rows: list[ForwardRow], index: int, destination: IPNetwork, via: IPAddress | None) -> bool:
    wanted = (index, destination, via)
    return any((row.index, row.destination, row.via) == wanted for row in rows)


def _neighbour(index: int, address: IPAddress) -> NeighbourRow:
    row = NeighbourRow(index=index)
    row.address.ip = address
    return row


def _is_unicast(row: NeighbourRow) -> bool:
    return bool(row.physical_address_length) and not row.physical_address[0] & 1 and not row.address.ip.is_multicast


def _call(library: ctypes.WinDLL, name: str, *arguments: object) -> None:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise OSError(0, f"this Windows has no {name}; Windows Server 2019 or later is needed") from None
    if code := function(*arguments):
        raise ctypes.WinError(code)


def _table(library: ctypes.WinDLL, name: str, row: type[R], *arguments: int) -> list[R]:
    table = c_void_p()
    _call(library, name, *(c_uint16(argument) for argument in arguments), byref(table))
    try:
        if table.value is None:
            return []
        (count,) = cast(table, POINTER(c_uint32))[:1]
        first = table.value + _TABLE_HEADER
        return [row.from_buffer_copy(ctypes.string_at(first + i * sizeof(row), sizeof(row))) for i in range(count)]
    finally:
        library.FreeMibTable(table)


@contextmanager
def _unless(*codes: int, holds: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Ignores an error with one of these codes if the condition holds."""
    try:
        yield
    except OSError as error:
        if error.winerror not in codes or not holds():
            raise
