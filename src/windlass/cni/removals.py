"""Rollback of an attachment: every step is tried, the last one first, even if others fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from windlass.cni.errors import Code, RequestError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Removal:
    """One step of a rollback. It succeeds if there is nothing to remove."""

    what: str
    remove: Callable[[], Awaitable[None]]


async def remove(removals: Sequence[Removal], seconds_each: float) -> list[str]:
    """Run `removals`, which are in the order of setting up, in reverse. Returns a sentence for each failure."""
    failures: list[str] = []
    for removal in reversed(removals):
        try:
            async with asyncio.timeout(seconds_each):
                await removal.remove()
        except TimeoutError:
            failures.append(f"{removal.what} was not removed within {seconds_each:g} s")
        except Exception as error:  # noqa: BLE001 - the other steps must be tried
            failures.append(f"{removal.what}: {str(error) or repr(error)}")
    if failures:
        log.warning("not all of a Pod's network could be removed", failures=failures)
    return failures


def require_removed(failures: Sequence[str]) -> None:
    if failures:
        raise RequestError(
            Code.NOT_ALL_REMOVED,
            "not all of the Pod's network could be removed",
            f"{'; '.join(failures)}. Everything else was removed; the request can be repeated.",
        )
