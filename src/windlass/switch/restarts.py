"""Ends the wait of a restarted ovs-vswitchd, which `start-ovs-vswitchd.sh` has begun."""

from __future__ import annotations

from typing import Final

from windlass.switch.operations import Operation, drop_keys
from windlass.switch.ovsdb import Database
from windlass.switch.rows import View

# A key in other_config of Open_vSwitch: with it ovs-vswitchd does not change the datapath's flows.
WAIT: Final = "flow-restore-wait"


async def end_wait(db: Database) -> None:
    """The bridge has its flows: from now on the datapath forwards by them."""
    await db.carried_out(await db.change(wait_difference))


def wait_difference(view: View) -> list[Operation]:
    return [drop_keys(view.root, "other_config", {WAIT})] if view.root and WAIT in view.root.other_config else []
