"""Structured logs: JSON for machines, text for people, on standard error; and their level while the agent runs."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Iterable

import structlog

from windlass.nodes.config import LogFormat, LogLevel

RECENT = 1000  # lines that are kept in memory, for `windlass support-bundle`

_log = structlog.get_logger(__name__)


def log_warnings_only() -> None:
    """For programs that use parts of the agent without its log of progress."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


class Logs:
    """The logs of this process."""

    def __init__(self, log_format: LogFormat, configured: LogLevel) -> None:
        self.configured = configured
        self.level = configured
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._return: asyncio.TimerHandle | None = None  # the timer that returns to the configured level
        renderer: structlog.typing.Processor = (
            structlog.processors.JSONRenderer()
            if log_format is LogFormat.JSON
            else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        )
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                renderer,
                self._remember,
            ],
            wrapper_class=_wrapper(configured),
            logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
            cache_logger_on_first_use=False,  # a logger in a cache would keep its level
        )

    @property
    def recent(self) -> Iterable[str]:
        """The last lines, oldest first."""
        return tuple(self._recent)

    @property
    def seconds_left(self) -> float | None:
        """Until the configured level is in force again; None: the level stays."""
        return None if self._return is None else max(0.0, self._return.when() - asyncio.get_running_loop().time())

    def set_level(self, level: LogLevel, seconds: float | None = None) -> None:
        """For this many seconds, then as configured; None: until it is set again, or the agent restarts."""
        if self._return is not None:
            self._return.cancel()
            self._return = None
        if seconds is not None:
            self._return = asyncio.get_running_loop().call_later(seconds, self._end)
        self._apply(level)

    def _end(self) -> None:
        self._return = None
        self._apply(self.configured)

    def _apply(self, level: LogLevel) -> None:
        before, self.level = self.level, level
        structlog.configure(wrapper_class=_wrapper(level))
        if before is not level:
            _log.warning("log level changed", now=level.value, before=before.value)

    def _remember(
        self, _logger: object, _method: str, event: structlog.typing.EventDict | str
    ) -> structlog.typing.EventDict | str:
        self._recent.append(str(event))
        return event


def _wrapper(level: LogLevel) -> type[structlog.typing.BindableLogger]:
    return structlog.make_filtering_bound_logger(getattr(logging, level.value.upper()))
