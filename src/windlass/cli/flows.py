"""`windlass flows`: the flows and groups that the agent of this Node has programmed, with owner and reason.

`windlass render` shows the same for manifests, without an agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from windlass.cli import agent_client
from windlass.cli.outputs import FLOW_FORMAT, fail, show


class ListedEntry(msgspec.Struct, omit_defaults=True):
    """A flow, or a group if it has a group number."""

    owner: str
    why: str
    symbolic: str
    ofctl: str
    cookie: str | None = None
    table: int | None = None
    priority: int | None = None
    group: int | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """The sort key: the order in which a packet passes the entries."""
        return self.group or 0, self.table or 0, -(self.priority or 0)


@click.command()
@agent_client.options
@click.option("--owner", help="Only flows and groups of this object: 'Service default/web', or only a kind or a name.")
@click.option("--table", help="Only flows of this table, by name or number; no groups.")
@click.option("--cookie", help="Only the flow with this cookie, as `ovs-ofctl dump-flows` shows it: 0x1f...")
@FLOW_FORMAT
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--why/--no-why", default=True, help="With symbolic: owner and reason above each flow.  [default: why]")
def flows(
    socket: Path | None,
    config: Path | None,
    owner: str | None,
    table: str | None,
    cookie: str | None,
    form: str,
    as_json: bool,
    why: bool,
) -> None:
    """Print the flows and groups that the running agent has programmed on this Node, with owner and reason.

    \b
    Examples:
      windlass flows --owner default/web
      windlass flows --owner Node --table L3Forwarding
      windlass flows --format ofctl

    Exit status: 0 printed (also if none match), 2 no agent answers, or the table does not exist.
    """
    filters = {"owner": owner, "table": table, "cookie": cookie}
    asked = {name: value for name, value in filters.items() if value is not None}
    try:
        where = agent_client.socket_of(socket, config)
        listed = _entries(where, "flows", asked)
        groups = _entries(where, "groups", asked) if table is None and cookie is None else []
    except agent_client.NoAnswer as error:
        fail("flows", error)
    if asked and not listed and not groups:
        what = " and ".join(f"{name} {value}" for name, value in asked.items())
        click.echo(f"windlass flows: no flow or group matches {what}; without options all flows are printed", err=True)
    show(_lines("json" if as_json else form, listed, groups, why=why))


def _entries(socket: Path, member: str, asked: Mapping[str, str]) -> list[ListedEntry]:
    content = agent_client.ask(socket, f"/v1/{member}", asked)
    entries = msgspec.json.decode(content, type=dict[str, list[ListedEntry]])[member]
    return sorted(entries, key=lambda entry: (entry.place, entry.symbolic))


def _lines(form: str, flows: Sequence[ListedEntry], groups: Sequence[ListedEntry], *, why: bool) -> Iterator[str]:
    match form:
        case "symbolic":
            for one in (*flows, *groups):
                if why:
                    yield click.style(f"# {one.owner}: {one.why}" if one.why else f"# {one.owner}", dim=True)
                yield one.symbolic
        case "ofctl":
            yield from (one.ofctl for one in (*groups, *flows))  # groups first: flows refer to them
        case _:
            yield msgspec.json.format(msgspec.json.encode([*flows, *groups])).decode()
