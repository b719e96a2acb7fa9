"""The log of connections that policies deny, with the names of the rules.

A meter of the switch limits these packets, so a flood does not load the agent. A connection is logged once, although
its client retries.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

import structlog
from msgspec import Struct, structs

from windlass.host.forwarded_clients import ForwardedClient
from windlass.model.policies import Direction
from windlass.model.services import Endpoint, Protocol
from windlass.policy.compiler import PolicyCompiler
from windlass.switch.packet_headers import PacketHeaders, packet_headers

AGAIN = 60.0  # seconds until the same connection is logged again
REMEMBERED = 1024  # connections
COUNTED = 1024  # rules with a counter; a rule that denied nothing for long loses it first
NAMED = 10  # rules in one line of the log; a thousand policies may select a Pod
RECENT = 10  # denials that `windlass status` can show

_log = structlog.get_logger(__name__)


class Denial(Struct, frozen=True):
    """A denied connection, judged by the policies of a local Pod."""

    direction: str  # egress: the Pod is the source
    pod: str
    peer: str
    protocol: str
    port: int | None
    rules: tuple[str, ...]

    def __str__(self) -> str:
        port = f" {self.port}" if self.port else ""
        ends = (self.pod, self.peer) if self.direction == Direction.EGRESS.value else (self.peer, self.pod)
        return f"{ends[0]} to {ends[1]}, {self.protocol}{port}: {', '.join(self.named_rules)}"

    @property
    def named_rules(self) -> list[str]:
        more = len(self.rules) - NAMED
        return [*self.rules[:NAMED], *([f"and {more} more"] if more > 0 else [])]


class DenialLog:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.compiler: PolicyCompiler | None = None  # the policies of this Node
        self.counted: OrderedDict[tuple[str, str], int] = OrderedDict()  # logged connections, by direction and rule
        self.recent: deque[Denial] = deque(maxlen=RECENT)
        self.suppressed = 0  # packets that the meter dropped, as of the last scrape
        self._now = now
        self._logged: OrderedDict[PacketHeaders, float] = OrderedDict()

    def note(self, frame: bytes) -> None:
        """A packet that the switch has denied."""
        if headers := packet_headers(frame):
            self._note(headers)

    def note_forwarded(self, protocol: Protocol, client: ForwardedClient, endpoint: Endpoint) -> None:
        """A client that the host would have forwarded. No meter limits these, so its own port does not count."""
        self._note(PacketHeaders(client.address, endpoint.address, protocol, port=endpoint.port))

    def _note(self, headers: PacketHeaders) -> None:
        if self.compiler is None or not self._is_new(headers):
            return
        denial = _judged(self.compiler, headers)
        if denial is None:
            return  # policies have changed since
        self.recent.append(denial)
        self._count(denial)
        _log.info("denied by policy", **{**structs.asdict(denial), "rules": denial.named_rules})

    def _count(self, denial: Denial) -> None:
        for rule in denial.rules:
            key = (denial.direction, rule)
            self.counted[key] = self.counted.pop(key, 0) + 1  # at the end
        while len(self.counted) > COUNTED:  # rules of policies that are gone are among them
            self.counted.popitem(last=False)

    def _is_new(self, headers: PacketHeaders) -> bool:
        now = self._now()
        is_new = now - self._logged.get(headers, float("-inf")) >= AGAIN
        if is_new:
            self._logged[headers] = now
            self._logged.move_to_end(headers)
            if len(self._logged) > REMEMBERED:
                self._logged.popitem(last=False)
        return is_new


def _judged(compiler: PolicyCompiler, headers: PacketHeaders) -> Denial | None:
    """Checks the egress policies of the source first, like the switch."""
    for direction, own, peer in (
        (Direction.EGRESS, headers.source, headers.destination),
        (Direction.INGRESS, headers.destination, headers.source),
    ):
        pod = compiler.local_pod_at(own)
        if pod is None:
            continue
        rules = compiler.denying(direction, pod, peer, headers.protocol, headers.port)
        if rules:
            protocol = headers.protocol.name if headers.protocol else "without ports"
            named = compiler.name_of(peer) or str(peer)
            return Denial(direction.value, pod, named, protocol, headers.port, rules)
    return None
