"""What the agent of this Node answers on its local API, for the commands that ask it; and where its socket is.

By the standard library: these commands start in a fraction of what an HTTP client's import takes. What comes of an
answer, on a screen, is of the command that asked.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import click
import msgspec

from windlass.nodes.config import ConfigError, load

SOCKET = Path("/run/windlass/agent.sock")
SECONDS = 20.0  # without a word of an agent that listens
NO_ANSWER = 2  # exit status

_Command = TypeVar("_Command", bound=Callable[..., None])


class NoAnswer(Exception):
    """There is no agent, or none that answers this. The message says what to do."""


class _Refusal(msgspec.Struct):
    error: str = ""


def options(command: _Command) -> _Command:
    """How every one of these commands finds the agent: `socket` and `config` become its arguments."""
    where = click.option(
        "--socket", "socket", type=click.Path(path_type=Path), help=f"The agent's socket.  [default: {SOCKET}]"
    )
    config = click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="The agent's configuration, to take the socket from: it is in its runDirectory.",
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
        raise NoAnswer(_nobody(socket, error, seconds)) from None
    except http.client.HTTPException as error:
        raise NoAnswer(
            f"{socket}: the answer broke off ({type(error).__name__}): the agent ended meanwhile; ask again"
        ) from None
    finally:
        connection.close()
    if answer.status == HTTPStatus.BAD_REQUEST:
        raise NoAnswer(msgspec.json.decode(content, type=_Refusal).error)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise NoAnswer(f"{socket}: the agent there does not know {path}: it is of an older version than this command")
    if answer.status != HTTPStatus.OK:
        raise NoAnswer(f"{socket}: the agent there cannot answer {path} ({answer.status}); its log says why")
    return content


def fail(command: str, error: NoAnswer) -> None:
    click.echo(f"windlass {command}: {error}", err=True)
    sys.exit(NO_ANSWER)


def coloured() -> bool:
    """On a terminal, unless somebody wants none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class _Connection(http.client.HTTPConnection):
    def __init__(self, socket: Path, seconds: float) -> None:
        super().__init__("agent", timeout=seconds)
        self._path = socket

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _nobody(path: Path, error: OSError, seconds: float) -> str:
    if isinstance(error, PermissionError):
        return f"{path}: only root may ask the agent; try again as root"
    if isinstance(error, TimeoutError):
        return f"{path}: the agent there does not answer within {seconds:.0f} s; its log may say why"
    where = "start it (`windlass agent`, or the Pod of DaemonSet windlass-agent), or name its socket with --socket"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
        was = " any more" if isinstance(error, ConnectionRefusedError) else ""
        return f"{path}: no agent listens there{was}; {where}"
    return f"{path}: the agent cannot be asked: {error.strerror or error}; {where}"
