"""Timeouts of the conntrack entries of closed TCP connections, in the conntrack zones of a Node's Pods.

An entry occupies its SNAT port, so the timeouts limit how many short connections per second a port pool can serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from windlass.pipeline.tracking import POD_ZONE, SNAT_ZONE
from windlass.switch.bridge_specs import ROLE
from windlass.switch.operations import Operation, drop_keys, insert, new_ref, put_reference, ref
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.rows import DatapathRow, OpenVSwitchRow, TimeoutPolicyRow, View, ZoneRow

ZONES: Final = (POD_ZONE, SNAT_ZONE)
# Seconds; each packet restarts the timeout. Both ends have closed, and only a FIN may follow whose acknowledgement was
# lost: it is sent again after 0.2 s and then at twice the interval each time, so five in a row would have to be lost.
# A connection that only one end has closed keeps the timeout of the Node (kernel) or the datapath's own (user space: 15
# minutes).
# In user space `tcp_close` begins when both FINs are acknowledged, or with an RST; `tcp_time_wait` when both were sent.
# In the kernel `tcp_time_wait` begins when both FINs are acknowledged, and `tcp_close` with an RST.
TIMEOUTS: Final[Mapping[str, int]] = {"tcp_close": 5, "tcp_time_wait": 10}

_OURS: Final = "conntrack"  # the role of a Datapath row that Windlass inserted


async def install(db: Database, datapath_type: str, others: Mapping[str, int] = MappingProxyType({})) -> bool:
    """Set the timeouts. False if the datapath does not support them, and keeps its own.

    `others` are timeouts of the Node. Without them Open vSwitch sets its defaults for the zones of the kernel datapath.
    """
    # First the row alone: ovs-vswitchd fills in the capabilities of a datapath when it first sees its row.
    await db.carried_out(await db.change(lambda view: datapath_difference(view, datapath_type)))
    datapath = datapath_of(db.view, datapath_type)
    if datapath is None or datapath.capabilities.get("ct_timeout") != "true":
        return False
    await db.carried_out(await db.change(lambda view: zone_difference(view, datapath_type, {**TIMEOUTS, **others})))
    return True


async def remove(db: Database, datapath_type: str) -> None:
    """Remove the timeouts. Does not wait for ovs-vswitchd, which may be stopped."""
    await db.change(lambda view: removal(view, datapath_type))


def datapath_of(view: View, datapath_type: str) -> DatapathRow | None:
    return view.datapaths.get(view.root.datapaths.get(datapath_type, "")) if view.root else None


def datapath_difference(view: View, datapath_type: str) -> list[Operation]:
    if view.root is None:
        raise SwitchRefusedError("the database of Open vSwitch is empty; the agent creates its bridge again")
    if datapath_type in view.root.datapaths:
        return []
    return [
        insert(DatapathRow, "datapath", {"external_ids": {ROLE: _OURS}}),
        put_reference(OpenVSwitchRow, ref(view.root.uuid), "datapaths", datapath_type, new_ref("datapath")),
    ]


def zone_difference(view: View, datapath_type: str, timeouts: Mapping[str, int]) -> list[Operation]:
    datapath = datapath_of(view, datapath_type)
    if datapath is None:
        return []
    operations: list[Operation] = []
    for number in ZONES:
        if _timeouts(view, datapath, number) != timeouts:
            zone, policy = f"zone_{number}", f"policy_{number}"
            operations += [
                insert(TimeoutPolicyRow, policy, {"timeouts": timeouts}),
                insert(ZoneRow, zone, {"timeout_policy": new_ref(policy)}),
                put_reference(DatapathRow, ref(datapath.uuid), "ct_zones", number, new_ref(zone)),
            ]
    return operations


def removal(view: View, datapath_type: str) -> list[Operation]:
    """Removes the zones, and the Datapath row unless another program inserted it or uses it."""
    datapath = datapath_of(view, datapath_type)
    if view.root is None or datapath is None:
        return []
    ours: Collection[int] = [number for number in ZONES if number in datapath.ct_zones]
    if datapath.external_ids.get(ROLE) == _OURS and len(ours) == len(datapath.ct_zones):
        return [drop_keys(view.root, "datapaths", [datapath_type])]
    return [drop_keys(datapath, "ct_zones", ours)] if ours else []


def _timeouts(view: View, datapath: DatapathRow, number: int) -> Mapping[str, int] | None:
    zone = view.zones.get(datapath.ct_zones.get(number, ""))
    policy = view.timeout_policies.get(zone.timeout_policy or "") if zone else None
    return policy.timeouts if policy else None
