"""Which state of the cluster this Node holds: the newest one whose work, and all earlier work, is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from windlass.cluster.sources import ClusterChange


class TicketStage(Enum):
    OPEN = auto()  # its work is under way
    NEEDS_PASS = auto()  # only a full pass completes it
    DONE = auto()  # in the switch and on the host


@dataclass(slots=True, eq=False)
class Ticket:
    """The work that one change of the cluster leads to."""

    change: ClusterChange
    stage: TicketStage = TicketStage.OPEN


class Progress:
    """Tickets in the order of their changes. They may be completed in any order."""

    def __init__(self, on_held: Callable[[ClusterChange], None]) -> None:
        """`on_held` gets the state that this Node holds now, with all changes since it was last called."""
        self._tickets: deque[Ticket] = deque()
        self._on_held = on_held

    @property
    def is_idle(self) -> bool:
        return not self._tickets

    def waiting_for_pass(self) -> list[Ticket]:
        """What a pass that begins now completes. Neighbours become one ticket: passes may fail for days."""
        self._join(lambda before, ticket: before.stage is ticket.stage is TicketStage.NEEDS_PASS)
        return [ticket for ticket in self._tickets if ticket.stage is TicketStage.NEEDS_PASS]

    def begin(self, change: ClusterChange) -> Ticket:
        ticket = Ticket(change)
        self._tickets.append(ticket)
        return ticket

    def needs_pass(self, ticket: Ticket) -> None:
        ticket.stage = TicketStage.NEEDS_PASS

    def complete(self, ticket: Ticket) -> None:
        """The work of this ticket is done, unless it needs a pass."""
        if ticket.stage is TicketStage.OPEN:
            self.complete_all([ticket])

    def complete_all(self, tickets: Iterable[Ticket]) -> None:
        """A pass has done the work of these."""
        for ticket in tickets:
            ticket.stage = TicketStage.DONE
        self._join(lambda _, ticket: ticket.stage is TicketStage.DONE)
        if self._tickets and self._tickets[0].stage is TicketStage.DONE:
            self._on_held(self._tickets.popleft().change)

    def _join(self, is_joined: Callable[[Ticket, Ticket], bool]) -> None:
        """Make such a ticket a part of the one before it. Each ticket holds a state of the whole cluster."""
        tickets: deque[Ticket] = deque()
        for ticket in self._tickets:
            if tickets and is_joined(tickets[-1], ticket):
                tickets[-1].change = _joined(tickets[-1].change, ticket.change)
            else:
                tickets.append(ticket)
        self._tickets = tickets


def _joined(first: ClusterChange, second: ClusterChange) -> ClusterChange:
    return ClusterChange(second.cluster, first.changes | second.changes, first.triggered + second.triggered)
