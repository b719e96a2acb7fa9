"""`windlass probe`: what kubelet asks in the agent's container. Not for people: they have `windlass status`.

It speaks HTTP by hand, so that asking every few seconds costs little: a client's import would take most of the time.
And on the unix socket: whoever else has the Node's ports, it is this agent that answers.
"""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

import click

SECONDS = 5.0
_OK = "200"


@click.command()
@click.argument("question", type=click.Choice(["live", "ready"]))
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    default=Path("/run/windlass/agent.sock"),
    show_default=True,
    help="The agent's local API.",
)
def probe(question: str, path: Path) -> None:
    """Ask the agent of this Node whether it is LIVE or READY; exit status 0: it is.

    LIVE: it answers, whatever it says. A Node that waits for its switch or its API server is not helped by another
    agent. READY: its network is in place.
    """
    try:
        status, body = _asked(path)
    except OSError as error:
        click.echo(f"windlass probe: {path}: the agent does not answer: {error.strerror or 'time is up'}", err=True)
        sys.exit(1)
    if question == "ready" and status != _OK:
        click.echo(f"windlass probe: not ready: {body}", err=True)
        sys.exit(1)


def _asked(path: Path) -> tuple[str, str]:
    """The status and the text of its answer."""
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(SECONDS)
        agent.connect(str(path))
        agent.sendall(b"GET /healthz HTTP/1.0\r\nHost: agent\r\n\r\n")
        while piece := agent.recv(2**16):
            answer += piece
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    protocol, _, status = head.partition(" ")
    if not protocol.startswith("HTTP/"):
        raise OSError(errno.EPROTO, "it is no agent, or it broke off")
    return status[:3], body.strip()
