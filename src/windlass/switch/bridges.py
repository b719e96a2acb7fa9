"""Creates, changes and deletes the Node's bridge with its gateway, tunnel and uplink, and waits for ovs-vswitchd.

`bridge_differences` decides which operations are needed. Ports of Pods are in `pod_ports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from windlass.switch import ovsdb
from windlass.switch.bridge_differences import (
    bridge_difference,
    outdated_uplink,
    removal,
    uplink_difference,
    wanted_ports,
)
from windlass.switch.bridge_specs import ROLE, BridgeSpec, Role
from windlass.switch.operations import Operation, drop_keys, increment_next_cfg, ref, unlink
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.rows import InterfaceRow, View
from windlass.switch.streams import SwitchUnreachableError

# A key in other_config of Open_vSwitch: with it ovs-vswitchd does not change the datapath's flows.
WAIT: Final = "flow-restore-wait"


@dataclass(frozen=True, slots=True)
class BridgePortNumbers:
    """OpenFlow port numbers, as ovs-vswitchd assigned them."""

    local: int
    gateway: int
    tunnel: int | None


async def ensure_bridge(db: Database, spec: BridgeSpec) -> BridgePortNumbers:
    """Create or change the bridge and its ports, without the uplink. Sends the difference only."""
    await db.carried_out(await db.change(lambda view: bridge_difference(view, spec)))
    local = await port_number(db, spec.name, spec.name)
    numbers = await _requested_numbers(
        db, spec.name, {port.name: port.number for port in wanted_ports(spec) if port.number}
    )
    return BridgePortNumbers(local, numbers[spec.gateway], numbers[spec.tunnel.name] if spec.tunnel else None)


async def retry_interfaces(db: Database) -> None:
    """Make ovs-vswitchd try again to create what it could not. On Windows only a change of the database does that.

    A database without any row has nothing to create.
    """
    await db.carried_out(await db.change(lambda view: [increment_next_cfg()] if view.root else []))


async def add_uplink(db: Database, spec: BridgeSpec) -> int:
    """Make the NIC a port of the bridge, and return its port number. The flows must be installed before.

    After an error the port may be in the database. Whether it may stay depends on where the Node's addresses are, so
    the caller decides.
    """
    # The same name with a different index is a different NIC. The existing port still uses the former one.
    await db.carried_out(await db.change(lambda view: outdated_uplink(view, spec)))
    await db.carried_out(await db.change(lambda view: uplink_difference(view, spec)))
    return (await _requested_numbers(db, spec.name, {spec.uplink: spec.numbers.uplink}))[spec.uplink]


async def remove_uplink(db: Database, bridge: str) -> None:
    """When this returns, the NIC belongs to the host again."""
    await db.carried_out(await db.change(lambda view: removal(view, bridge, Role.UPLINK)))


@asynccontextmanager
async def requiring_bridge(db: Database, bridge: str) -> AsyncIterator[None]:
    """Raises SwitchUnreachableError in the block when the bridge is deleted: its waits would never end."""
    deleted = asyncio.create_task(db.wait_for(lambda view: bridge not in view.bridges), name=f"{bridge} is deleted")
    try:
        async with asyncio.timeout(None) as limit:

            def end(_: asyncio.Task[bool]) -> None:
                limit.reschedule(0)

            deleted.add_done_callback(end)
            try:
                yield
            finally:
                deleted.remove_done_callback(end)
    except TimeoutError:
        raise SwitchUnreachableError(f"{bridge}: the bridge was deleted; the agent creates it again") from None
    finally:
        deleted.cancel()


async def delete_bridge(db: Database, bridge: str) -> None:
    """Delete the bridge with all its ports in one transaction. When this returns, the NIC belongs to the host again."""
    if db.view.root and bridge in db.view.bridges:
        deletion = unlink(db.view.root, "bridges", ref(db.view.bridges[bridge].uuid))
        await db.carried_out(await db.change(lambda _: [deletion]))


async def end_wait(db: Database) -> None:
    """Ends the wait of a restarted ovs-vswitchd, which `start-ovs-vswitchd.sh` has begun: the bridge has its flows."""
    await db.carried_out(await db.change(_wait_difference))


async def port_number(db: Database, bridge: str, interface: str) -> int:
    """Wait until ovs-vswitchd has created a port that is in the database, and return its number."""
    try:
        async with asyncio.timeout(ovsdb.PATIENCE):
            row = await db.wait_for(lambda view: _settled(view, bridge, interface))
    except TimeoutError:
        raise SwitchUnreachableError(
            db.view.problem
            or f"{bridge}: ovs-vswitchd has not created port {interface} within {ovsdb.PATIENCE:g} s; is it running?"
        ) from None
    if row.ofport is None or row.ofport < 0:
        hint = _HINTS.get(row.external_ids.get(ROLE, ""), "see the log of ovs-vswitchd")
        raise SwitchRefusedError(f"{bridge}: port {interface}: {row.error or 'no port number'}; {hint}")
    return row.ofport


_HINTS: Final = {
    Role.UPLINK.value: "set `uplink` to a NIC of this Node that is not a port of another bridge",
    Role.TUNNEL.value: "another tunnel may use its UDP port: remove that tunnel, or set `tunnelType` to the other type",
    Role.GATEWAY.value: "an interface of this name may exist already: remove it, or set `gateway` to another name",
    Role.LOCAL.value: "an interface of this name may exist already: remove it, or set `bridge` to another name",
    Role.POD.value: "its interface must exist before its port is added",
}


def _wait_difference(view: View) -> list[Operation]:
    return [drop_keys(view.root, "other_config", {WAIT})] if view.root and WAIT in view.root.other_config else []


def _settled(view: View, bridge: str, interface: str) -> InterfaceRow | None:
    row = view.interfaces.get(interface)
    if row is None:
        raise SwitchRefusedError(f"{bridge}: port {interface}: another program deleted it")
    return row if row.ofport is not None or row.error else None


async def _requested_numbers(db: Database, bridge: str, requests: Mapping[str, int]) -> Mapping[str, int]:
    """The numbers of these ports. SwitchRefusedError if one differs from its request: flows use the requested numbers.

    ovs-vswitchd takes a number away from a port that did not request it, but only one each time it reconfigures.
    """
    for _ in range(3):
        given = {name: await port_number(db, bridge, name) for name in requests}
        if given == requests:
            return given
        await retry_interfaces(db)
    interface, number = next(request for request in requests.items() if request not in given.items())
    holder = next((i.name for i in db.view.interfaces_of(bridge) if i.ofport == number), "another port")
    raise SwitchRefusedError(
        f"{bridge}: port {interface}: {holder} also requests its number {number}; "
        f"release it: ovs-vsctl clear Interface {holder} ofport_request"
    )
