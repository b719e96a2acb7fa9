"""The bytes between the plugin and the agent. `plugin/windlass-cni.c` is the other end; no sockets here.

A request is `WINDLASS-CNI 1 <environment bytes> <stdin bytes>` and a newline, then the environment as
NUL-terminated KEY=VALUE entries, then standard input as it was. An answer is
`WINDLASS-CNI 1 <exit code> <stdout bytes>` and a newline, then what to print. One of each per connection.
A program in C writes this without a JSON library, and a person with `socat` reads it.
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
    """These bytes are no request; the sentence says why."""


@dataclass(frozen=True, slots=True)
class PluginRequest:
    environment: Mapping[str, str]
    config: bytes  # standard input of the plugin


@dataclass(frozen=True, slots=True)
class PluginReply:
    exit_code: int
    output: bytes  # standard output of the plugin


class RequestReader:
    """Takes a request's bytes in pieces of any size and says when it is whole. What follows it is ignored."""

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
        """What to say when the other end has closed, and `feed` has not given a request."""
        return WireError(f"the connection ended after {len(self._buffer)} bytes, within the request")


def encode(answer: PluginReply) -> bytes:
    return PROTOCOL + b"%d %d\n" % (answer.exit_code, len(answer.output)) + answer.output


def _sizes(header: bytes) -> tuple[int, int]:
    found = _HEADER.fullmatch(header)
    if found is None:
        raise WireError(
            f"the request starts with {header!r}, not with {PROTOCOL.decode()!r} and two sizes: plugin and agent "
            f"may be of different releases"
        )
    environment_size, config_size = int(found[1]), int(found[2])
    if environment_size > MAX_ENVIRONMENT or config_size > MAX_CONFIG:
        raise WireError(
            f"the request announces {environment_size} bytes of environment and {config_size} of configuration; "
            f"at most {MAX_ENVIRONMENT} and {MAX_CONFIG} are taken"
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
        found.setdefault(key, value)  # the first wins, as in getenv
    return found
