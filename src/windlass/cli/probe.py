"""`windlass probe`: the probe that kubelet runs in the agent's container. People use `windlass status`.

It runs every few seconds: it writes HTTP itself, because importing a client would take most of its time. It asks the
local API, because another process may listen on the ports of the Node.
"""

from __future__ import annotations

import errno
import sys
from contextlib import closing
from pathlib import Path

import click

from windlass.channels import local
from windlass.places import HERE

SECONDS = 5.0
_OK = "200"


@click.command()
@click.argument("question", type=click.Choice(["live", "ready"]))
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    default=Path(HERE.run, "agent.sock"),
    show_default=True,
    help="The agent's socket.",
)
def probe(question: str, path: Path) -> None:
    """Ask the running agent whether it is live or ready, for kubelet's probes.

    \b
    live   the agent answers, even while it waits for the switch or the API server
    ready  the network of the Node is in place

    Exit status: 0 yes, 1 no.
    """
    try:
        status, body = _asked(path)
    except OSError as error:
        click.echo(f"windlass probe: {path}: the agent does not answer: {error.strerror or 'timed out'}", err=True)
        sys.exit(1)
    if question == "ready" and status != _OK:
        click.echo(f"windlass probe: not ready: {body}", err=True)
        sys.exit(1)


def _asked(path: Path) -> tuple[str, str]:
    """The HTTP status and the body of the answer."""
    answer = b""
    with closing(local.dial(path, SECONDS)) as agent:
        agent.sendall(b"GET /healthz HTTP/1.0\r\nHost: agent\r\n\r\n")
        while piece := agent.recv(2**16):
            answer += piece
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    protocol, _, status = head.partition(" ")
    if not protocol.startswith("HTTP/"):
        raise OSError(errno.EPROTO, "the answer is not HTTP, or incomplete")
    return status[:3], body.strip()
