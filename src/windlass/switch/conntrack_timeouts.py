"""How long the datapath tracks an ended TCP connection, in the zones of a Node's Pods.

An entry holds its SNAT port, so this decides how many short connections a second a pool of ports can serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from windlass.pipeline.layout import POD_ZONE, SNAT_ZONE
from windlass.switch.bridges import ROLE
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.rows import (
    Datapath,
    OpenVSwitch,
    Operation,
    TimeoutPolicy,
    View,
    Zone,
    drop_references,
    insert,
    new_ref,
    put_reference,
    ref,
)

ZONES: Final = (POD_ZONE, SNAT_ZONE)
# Seconds; each packet begins the time anew. Both ends have closed, and what may still come is a FIN whose
# acknowledgement was lost: it is sent again after 0.2 s and then at twice the interval each time, so five in a row
# would have to be lost. A connection that only one end has closed keeps the datapath's time (user space: 15 minutes).
# In user space `tcp_close` begins when both FINs are acknowledged, or with an RST; `tcp_time_wait` when both were sent.
# In the kernel `tcp_time_wait` begins when both FINs are acknowledged, and `tcp_close` with an RST.
TIMEOUTS: Final[Mapping[str, int]] = {"tcp_close": 5, "tcp_time_wait": 10}

_OURS: Final = "conntrack"  # the role of a Datapath row that was made here


async def hold(db: Database, datapath_type: str) -> bool:
    """Sends the difference only. False: the datapath has no such timeouts, and keeps its own."""
    # On its own: ovs-vswitchd fills in the capabilities of a datapath when it first sees the row.
    await db.carried_out(await db.change(lambda view: datapath_difference(view, datapath_type)))
    datapath = datapath_of(db.view, datapath_type)
    if datapath is None or datapath.capabilities.get("ct_timeout") != "true":
        return False
    await db.carried_out(await db.change(lambda view: zone_difference(view, datapath_type)))
    return True


async def give_back(db: Database, datapath_type: str) -> None:
    """Does not wait for ovs-vswitchd, which need not run: the change stands in the database."""
    await db.change(lambda view: removal(view, datapath_type))


def datapath_of(view: View, datapath_type: str) -> Datapath | None:
    return view.datapaths.get(view.root.datapaths.get(datapath_type, "")) if view.root else None


def datapath_difference(view: View, datapath_type: str) -> list[Operation]:
    if view.root is None:
        raise SwitchRefusedError("the database of Open vSwitch is empty; the agent makes its bridge anew")
    if datapath_type in view.root.datapaths:
        return []
    return [
        insert(Datapath, "datapath", {"external_ids": {ROLE: _OURS}}),
        put_reference(OpenVSwitch, ref(view.root.uuid), "datapaths", datapath_type, new_ref("datapath")),
    ]


def zone_difference(view: View, datapath_type: str) -> list[Operation]:
    datapath = datapath_of(view, datapath_type)
    if datapath is None:
        return []
    operations: list[Operation] = []
    for number in ZONES:
        if _timeouts(view, datapath, number) != TIMEOUTS:
            zone, policy = f"zone_{number}", f"policy_{number}"
            operations += [
                insert(TimeoutPolicy, policy, {"timeouts": TIMEOUTS}),
                insert(Zone, zone, {"timeout_policy": new_ref(policy)}),
                put_reference(Datapath, ref(datapath.uuid), "ct_zones", number, new_ref(zone)),
            ]
    return operations


def removal(view: View, datapath_type: str) -> list[Operation]:
    """The zones, and the Datapath row unless somebody else made it or uses it."""
    datapath = datapath_of(view, datapath_type)
    if view.root is None or datapath is None:
        return []
    ours: Collection[int] = [number for number in ZONES if number in datapath.ct_zones]
    if datapath.external_ids.get(ROLE) == _OURS and len(ours) == len(datapath.ct_zones):
        return [drop_references(view.root, "datapaths", [datapath_type])]
    return [drop_references(datapath, "ct_zones", ours)] if ours else []


def _timeouts(view: View, datapath: Datapath, number: int) -> Mapping[str, int] | None:
    zone = view.zones.get(datapath.ct_zones.get(number, ""))
    policy = view.timeout_policies.get(zone.timeout_policy or "") if zone else None
    return policy.timeouts if policy else None
