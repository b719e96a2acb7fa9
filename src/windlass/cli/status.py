"""`windlass status`: the state of the agent of this Node, and its problems, in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from windlass.cli import agent_client
from windlass.cli.outputs import fail, show

_FEW = 3  # how many names are shown next to a count; --details shows all


class ShownNode(Struct, rename="camel"):
    name: str
    os: str
    traffic_mode: str
    addresses: list[str]
    pod_cidrs: list[str] = msgspec.field(name="podCIDRs")


class ShownPeer(Struct, rename="camel"):
    addresses: list[str]
    pod_cidrs: list[str] = msgspec.field(name="podCIDRs")


class ShownPod(Struct, rename="camel"):
    interface: str
    ofport: int
    addresses: list[str]


class ShownFinding(Struct, rename="camel"):
    """A finding of the preflight checks."""

    check: str
    what: str
    remedy: str


class ShownState(Struct, rename="camel"):
    """The part of /v1/state that is shown."""

    ready: bool
    waiting_for: str
    revision: str
    generation: int
    updated: datetime
    behind_seconds: float
    flow_count: int
    problems: dict[str, list[str]]
    findings: list[ShownFinding] = []
    recent_denials: list[str] = []
    node: ShownNode | None = None  # this and the following are unknown before the first pass
    peers: dict[str, ShownPeer] = {}
    pods: dict[str, ShownPod] = {}
    service_count: int = 0


@click.command()
@agent_client.options
@click.option("--details", is_flag=True, help="List every Node and Pod with its addresses.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer of the agent, as JSON.")
def status(socket: Path | None, config: Path | None, details: bool, as_json: bool) -> None:
    """Show whether the network of this Node is ready, and every problem. Asks the running agent.

    Exit status: 0 ready and without problems, 1 not ready or with problems, 2 no agent answers.
    """
    try:
        content = agent_client.ask(agent_client.socket_of(socket, config), "/v1/state")
    except agent_client.NoAnswer as error:
        fail("status", error)
    state = msgspec.json.decode(content, type=ShownState)
    if as_json:
        click.echo(msgspec.json.format(content))
    else:
        show(lines(state, details=details, now=datetime.now(UTC)))
    sys.exit(0 if state.ready and not state.problems else 1)


def lines(state: ShownState, *, details: bool, now: datetime) -> Iterator[str]:
    name = f"Node {state.node.name}" if state.node else "this Node"
    ready = click.style("ready", fg="green") if state.ready else click.style("not ready", fg="red")
    yield f"{click.style(name, bold=True)} is {ready}"
    if not state.ready:
        yield f"  waiting for: {state.waiting_for}"
    yield ""
    yield from _columns(_facts(state, now))
    if state.recent_denials:
        yield ""
        yield "  last connections that policies denied:"
        yield from (f"    {denial}" for denial in state.recent_denials[-_FEW:])
    if details:
        yield from _details(state)
    yield ""
    yield from _problems(state.problems)
    if state.findings:
        yield from _findings(state.findings)


def _facts(state: ShownState, now: datetime) -> Iterator[tuple[str, str]]:
    if state.node:
        yield "addresses", ", ".join(state.node.addresses)
        yield "PodCIDRs", ", ".join(state.node.pod_cidrs)
        yield "traffic mode", f"{state.node.traffic_mode} ({state.node.os})"
    if state.generation:
        age = (now - state.updated).total_seconds()
        ago = "just now" if age < 1 else f"{_seconds(age)} ago"
        yield "applied", f"revision {state.revision} of the cluster, {ago}"
    else:
        yield "applied", "no state of the cluster yet"
    yield "lag", f"behind for {_seconds(state.behind_seconds)}" if state.behind_seconds else "none"
    if state.node:
        yield "other Nodes", _counted(state.peers)
        yield "Pods", _counted(state.pods)
        yield "Services", f"{state.service_count:,}"
    yield "flows", f"{state.flow_count:,}"


def _details(state: ShownState) -> Iterator[str]:
    if state.peers:
        yield ""
        rows = [(name, ", ".join(one.addresses), ", ".join(one.pod_cidrs)) for name, one in sorted(state.peers.items())]
        yield from _columns([("NODE", "ADDRESSES", "POD CIDRS"), *rows])
    if state.pods:
        yield ""
        found = sorted(state.pods.items())
        pods = [(key, ", ".join(one.addresses), one.interface, str(one.ofport)) for key, one in found]
        yield from _columns([("POD", "ADDRESSES", "INTERFACE", "PORT"), *pods])


def _problems(problems: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if not problems:
        yield "no problems"
        return
    count = sum(map(len, problems.values()))
    yield click.style("1 problem" if count == 1 else f"{count} problems", fg="red", bold=True)
    for area, sentences in sorted(problems.items()):
        yield f"  {click.style(area, bold=True)}"
        for sentence in sentences:
            yield f"    - {sentence}"


def _findings(findings: Sequence[ShownFinding]) -> Iterator[str]:
    count = "1 warning" if len(findings) == 1 else f"{len(findings)} warnings"
    yield f"{click.style(count, fg='yellow', bold=True)} from the preflight checks"
    for finding in findings:
        yield f"  {click.style(finding.check, bold=True)}"
        yield f"    - {finding.what}. {finding.remedy}"


def _columns(rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> Iterator[str]:
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    for row in listed:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def _counted(named: Mapping[str, object]) -> str:
    if not named:
        return "none"
    first = ", ".join(sorted(named)[:_FEW])
    return f"{len(named):,}: {first}{', ...' if len(named) > _FEW else ''}"


def _seconds(seconds: float) -> str:
    """Uses the largest unit that gives a number of two or more."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
