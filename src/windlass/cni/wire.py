"""The protocol between the CNI plugin (`plugin/windlass-cni.c`) and the agent, as bytes. No sockets.

A request is `WINDLASS-CNI 1 <environment bytes> <stdin bytes>` and a newline, then the environment as
NUL-terminated KEY=VALUE entries, then standard input unchanged. A reply is
`WINDLASS-CNI 1 <exit code> <stdout bytes>` and a newline, then the output. A connection carries one of each.
A C program needs no JSON library for it, and a person can read it with `socat`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOL = b"WINDLASS-CNI 1 "
MAX_HEADER = 64
MAX_ENVIRONMENT = 64 * 1024
MAX_CONFIG = 1024 * 1024

_HEADER = re.compile(re.escape(PROTOCOL) + rb"([0-9]{1,9}) ([0-9]{1,9})")


class WireError(ValueError):
    """The bytes are not a request. The message says why."""


@dataclass(frozen=True, slots=True)
class PluginRequest:
    environment: Mapping[str, str]
    config: bytes  # standard input of the plugin


@dataclass(frozen=True, slots=True)
class PluginReply:
    exit_code: int
    output: bytes  # standard output of the plugin


class RequestReader:
    """Collects the bytes of a request in pieces of any size. Ignores bytes after the request."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> PluginRequest | None:
        self._buffer += piece
        header_size = self._buffer.find(b"\n", 0, MAX_HEADER)
        if header_size < 0:
            if len(self._buffer) >= MAX_HEADER:
                raise WireError(f"no line end within {MAX_HEADER} bytes: this is not the Windlass CNI protocol")
            return None
        environment_size, config_size = _sizes(bytes(self._buffer[:header_size]))
        environment_end = header_size + 1 + environment_size
        end = environment_end + config_size
        if len(self._buffer) < end:
            return None
        return PluginRequest(
            environment=_environment(bytes(self._buffer[header_size + 1 : environment_end])),
            config=bytes(self._buffer[environment_end:end]),
        )

    def cut_off(self) -> WireError:
        """The error if the connection is closed before `feed` has returned a request."""
        return WireError(f"the connection was closed after {len(self._buffer)} bytes, before the end of the request")


def encode(answer: PluginReply) -> bytes:
    return PROTOCOL + b"%d %d\n" % (answer.exit_code, len(answer.output)) + answer.output


def _sizes(header: bytes) -> tuple[int, int]:
    found = _HEADER.fullmatch(header)
    if found is None:
        raise WireError(
            f"the request starts with {header!r}, not with {PROTOCOL.decode()!r} and two sizes: plugin and agent "
            f"may have different versions"
        )
    environment_size, config_size = int(found[1]), int(found[2])
    if environment_size > MAX_ENVIRONMENT or config_size > MAX_CONFIG:
        raise WireError(
            f"the request announces {environment_size} bytes of environment and {config_size} of configuration; "
            f"the maximum is {MAX_ENVIRONMENT} and {MAX_CONFIG}"
        )
    return environment_size, config_size


def _environment(block: bytes) -> dict[str, str]:
    if block and not block.endswith(b"\0"):
        raise WireError("the last variable of the environment is not terminated")
    found: dict[str, str] = {}
    for entry in block.split(b"\0")[:-1]:
        try:
            key, equals, value = entry.decode().partition("=")
        except UnicodeDecodeError:
            raise WireError(f"the variable {entry[:32]!r} of the environment is not UTF-8") from None
        if not equals or not key.startswith("CNI_"):
            raise WireError(f"{entry[:32]!r} is not a CNI_ variable with a value")
        found.setdefault(key, value)  # the first one wins, as in getenv
    return found
