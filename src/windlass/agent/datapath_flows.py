"""Makes the userspace datapath delete the flows that it derived from OpenFlow flows, after a change of policies.

ovs-vswitchd corrects its datapath flows when OpenFlow flows change. In user space, Open vSwitch 3.1 finds the datapath
flow to correct by the header of a packet. If two of them overlap, it may correct one twice and the other never, and
the other one still admits packets that a policy now denies. Deleted flows are derived again from the next packets.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from windlass.nodes.config import Config
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

Forget = Callable[[], Coroutine[None, None, None]]


def forgetting(config: Config) -> Forget | None:
    """None for the kernel datapath, which finds each flow by its id."""

    async def forget() -> None:
        try:
            await ask(control_socket(config.ovs_run_directory), "revalidator/purge")
        except (SwitchRefusedError, SwitchUnreachableError) as error:
            raise SwitchUnreachableError(
                f"{error}; the datapath may still admit packets that policies now deny, and the agent tries again"
            ) from error

    return forget if config.is_userspace else None
