"""What an ovs-vswitchd that was restarted waits for. `start-ovs-vswitchd.sh` has it wait."""

from __future__ import annotations

from typing import Final

from windlass.switch.ovsdb import Database
from windlass.switch.rows import Operation, View, drop_keys

WAIT: Final = (
    "flow-restore-wait"  # in other_config of Open_vSwitch; with it ovs-vswitchd leaves the datapath's flows alone
)


async def end_wait(db: Database) -> None:
    """The bridge is filled: from now on the datapath forwards by its flows."""
    await db.carried_out(await db.change(wait_difference))


def wait_difference(view: View) -> list[Operation]:
    return [drop_keys(view.root, "other_config", {WAIT})] if view.root and WAIT in view.root.other_config else []
