"""The errors after which the agent tries a pass again."""

from __future__ import annotations

from windlass.cluster.nodes import NotUsable
from windlass.host.protocol import HostError
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

FAILURES = (HostError, SwitchRefusedError, SwitchUnreachableError, NotUsable)
