"""What became of messages that were sent to a switch: accepted, or refused with an OpenFlow error. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

from windlass.openflow.wire.errors import OpenFlowError

T = TypeVar("T")


class RefusedItem(Struct, Generic[T], frozen=True):
    what: T
    error: OpenFlowError


class DeliveryResult(Struct, Generic[T], frozen=True):
    accepted: list[T]
    refused: list[RefusedItem[T]]


class Delivery(Generic[T]):
    """Items that were sent. The xid of an error identifies the item that was refused."""

    def __init__(self, items: Iterable[T], message: Callable[[T, int], bytes], xid: Callable[[], int]) -> None:
        self.messages = self._numbered(items, message, xid)
        self._sent: dict[int, T] = {}
        self._errors: dict[int, OpenFlowError] = {}

    def claim(self, xid: int, error: OpenFlowError) -> bool:
        """Whether the error is about one of these items; if so, it is noted."""
        if xid not in self._sent:
            return False
        self._errors.setdefault(xid, error)
        return True

    def result(self) -> DeliveryResult[T]:
        errors = self._errors
        return DeliveryResult(
            [item for xid, item in self._sent.items() if xid not in errors] if errors else list(self._sent.values()),
            [RefusedItem(self._sent[xid], error) for xid, error in errors.items()],
        )

    def _numbered(
        self, items: Iterable[T], message: Callable[[T, int], bytes], next_xid: Callable[[], int]
    ) -> Iterator[bytes]:
        for item in items:
            xid = next_xid()
            self._sent[xid] = item
            yield message(item, xid)
