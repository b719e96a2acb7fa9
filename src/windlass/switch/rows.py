"""Rows of the Open_vSwitch database as typed values, and a view of all of them. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

DATABASE: Final = "Open_vSwitch"


class Row(Struct, frozen=True, kw_only=True):
    """The fields of a row type are the columns that are monitored, with the defaults of the database.

    A column of at most one value is that value or None; a set is a frozenset, a map is a dict.
    """

    uuid: str


class OpenVSwitchRow(Row, frozen=True, kw_only=True):
    bridges: frozenset[str] = frozenset()  # uuids
    next_cfg: int = 0  # the number of the last change in the database
    cur_cfg: int = 0  # the number of the last change that ovs-vswitchd has carried out
    datapaths: dict[str, str] = {}  # uuids, by the datapath's type
    other_config: dict[str, str] = {}


class BridgeRow(Row, frozen=True, kw_only=True):
    name: str
    ports: frozenset[str] = frozenset()  # uuids
    datapath_type: str = ""
    fail_mode: str | None = None
    protocols: frozenset[str] = frozenset()
    other_config: dict[str, str] = {}
    flow_tables: dict[int, str] = {}  # uuids, by the table's number


class FlowTableRow(Row, frozen=True, kw_only=True):
    prefixes: frozenset[str] = frozenset()


class PortRow(Row, frozen=True, kw_only=True):
    name: str
    interfaces: frozenset[str] = frozenset()  # uuids


class InterfaceRow(Row, frozen=True, kw_only=True):
    name: str
    type: str = ""
    ofport: int | None = None  # None: ovs-vswitchd has not seen it yet; -1: it could not create it
    ofport_request: int | None = None
    mac: str | None = None
    mtu_request: int | None = None
    error: str | None = None
    options: dict[str, str] = {}
    external_ids: dict[str, str] = {}


class DatapathRow(Row, frozen=True, kw_only=True):
    ct_zones: dict[int, str] = {}  # uuids, by the zone's number
    capabilities: dict[str, str] = {}  # as ovs-vswitchd found them
    external_ids: dict[str, str] = {}


class ZoneRow(Row, frozen=True, kw_only=True):
    timeout_policy: str | None = None  # uuid


class TimeoutPolicyRow(Row, frozen=True, kw_only=True):
    timeouts: dict[str, int] = {}  # seconds


TABLES: Final[Mapping[str, type[Row]]] = {
    "Open_vSwitch": OpenVSwitchRow,
    "Bridge": BridgeRow,
    "Flow_Table": FlowTableRow,
    "Port": PortRow,
    "Interface": InterfaceRow,
    "Datapath": DatapathRow,
    "CT_Zone": ZoneRow,
    "CT_Timeout_Policy": TimeoutPolicyRow,
}


@dataclass(frozen=True, slots=True)
class View:
    """The database as last received; it stays while the connection is lost.

    Rows with a name are keyed by it (it is unique in its table), the others by their uuid.
    """

    connections: int = 0  # how many there were: a reconnect is a change, too
    problem: str = ""  # why there is no connection; empty while there is one
    root: OpenVSwitchRow | None = None
    bridges: Mapping[str, BridgeRow] = field(default_factory=dict)
    flow_tables: Mapping[str, FlowTableRow] = field(default_factory=dict)
    ports: Mapping[str, PortRow] = field(default_factory=dict)
    interfaces: Mapping[str, InterfaceRow] = field(default_factory=dict)
    datapaths: Mapping[str, DatapathRow] = field(default_factory=dict)
    zones: Mapping[str, ZoneRow] = field(default_factory=dict)
    timeout_policies: Mapping[str, TimeoutPolicyRow] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of the last change that ovs-vswitchd has carried out."""
        return self.root.cur_cfg if self.root else 0

    def bridge_of(self, port: str) -> BridgeRow | None:
        row = self.ports.get(port)
        if row is None:
            return None
        return next((bridge for bridge in self.bridges.values() if row.uuid in bridge.ports), None)

    def interfaces_of(self, bridge: str) -> list[InterfaceRow]:
        """Interfaces of ports with one interface of the same name: all but bonds, which Windlass leaves alone."""
        row = self.bridges.get(bridge)
        if row is None:
            return []
        ports = (port for port in self.ports.values() if port.uuid in row.ports)
        return [self.interfaces[port.name] for port in ports if port.name in self.interfaces]
