"""A client of the agent's local API, for the commands that ask the running agent.

It uses the standard library only: importing an HTTP client would take much longer than these commands.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import click
import msgspec

from windlass.channels import local
from windlass.nodes.config import ConfigError, load
from windlass.places import HERE

SOCKET = Path(HERE.run, "agent.sock")
SECONDS = 20.0  # how long a command waits for an answer

_Command = TypeVar("_Command", bound=Callable[..., None])


class NoAnswer(Exception):
    """No agent answers, or it refuses the request. The message says what to do."""


class _Refusal(msgspec.Struct):
    error: str = ""


def options(command: _Command) -> _Command:
    """Add the options that say where the agent is: `socket` and `config` become arguments of the command."""
    where = click.option(
        "--socket", "socket", type=click.Path(path_type=Path), help=f"The agent's socket.  [default: {SOCKET}]"
    )
    config = click.option(
        "--config", type=click.Path(path_type=Path), help="The agent's configuration: its runDirectory has the socket."
    )
    return where(config(command))


def socket_of(socket: Path | None, config: Path | None) -> Path:
    if socket:
        return socket
    try:
        return load(config).api_socket if config else SOCKET
    except ConfigError as error:
        raise NoAnswer(str(error)) from None


def ask(
    socket: Path, path: str, asked: Mapping[str, str] | None = None, method: str = "GET", seconds: float = SECONDS
) -> bytes:
    connection = _Connection(socket, seconds)
    try:
        connection.request(method, f"{path}?{urlencode(asked or {})}")
        answer = connection.getresponse()
        content = answer.read()
    except OSError as error:
        raise NoAnswer(_no_agent(socket, error, seconds)) from None
    except http.client.HTTPException as error:
        raise NoAnswer(
            f"{socket}: the answer is incomplete ({type(error).__name__}): the agent stopped before its end; try again"
        ) from None
    finally:
        connection.close()
    if answer.status == HTTPStatus.BAD_REQUEST:
        raise NoAnswer(msgspec.json.decode(content, type=_Refusal).error)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise NoAnswer(f"{socket}: the agent does not know {path}: it is older than this command")
    if answer.status != HTTPStatus.OK:
        raise NoAnswer(f"{socket}: the agent failed to answer {path} ({answer.status}); see its log")
    return content


class _Connection(http.client.HTTPConnection):
    def __init__(self, socket: Path, seconds: float) -> None:
        super().__init__("agent", timeout=seconds)
        self._path = socket

    def connect(self) -> None:
        # A Windows pipe has all methods that HTTPConnection uses.
        self.sock = local.dial(self._path, self.timeout)


def _no_agent(path: Path, error: OSError, seconds: float) -> str:
    if isinstance(error, PermissionError):
        return f"{path}: only root can ask the agent; run it again as root"
    if isinstance(error, TimeoutError):
        return f"{path}: the agent does not answer within {seconds:.0f} s; see its log"
    where = "start it (`windlass agent`, or the Pod of DaemonSet windlass-agent), or give its socket with --socket"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
        was = " any more" if isinstance(error, ConnectionRefusedError) else ""
        return f"{path}: no agent listens here{was}; {where}"
    return f"{path}: the agent cannot be reached: {error.strerror or error}; {where}"
