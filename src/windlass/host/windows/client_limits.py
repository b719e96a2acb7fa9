"""The limit for clients that the agent serves at one address and port of a NodePort."""

from __future__ import annotations

import asyncio

import structlog

MOST_CLIENTS = 4096  # each has a socket, or two
_SECONDS_BETWEEN_WARNINGS = 60.0

_log = structlog.get_logger(__name__)


class LimitWarning:
    """Logs at most once a minute that a NodePort has too many clients."""

    def __init__(self, node_port: str, message: str) -> None:
        self._node_port = node_port
        self._message = message
        self._count = 0
        self._warned = float("-inf")

    def note(self, limit: int) -> None:
        self._count += 1
        now = asyncio.get_running_loop().time()
        if now - self._warned >= _SECONDS_BETWEEN_WARNINGS:
            self._warned = now
            _log.warning(self._message, node_port=self._node_port, limit=limit, count=self._count)
