"""`windlass flows`: the flows and groups that the agent of this Node wants in the switch, with owner and reason.

As `windlass render` shows those that a Node would get from manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from windlass.cli import answers


class Entry(msgspec.Struct, omit_defaults=True):
    """A flow, or a group: which of them says what it has."""

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
        """In the order that a packet meets them in."""
        return self.group or 0, self.table or 0, -(self.priority or 0)


@click.command()
@answers.options
@click.option("--owner", help="Of this object only: 'Service default/web', or a kind or a name alone.")
@click.option("--table", help="Of this table only, by name or number; groups are of no table.")
@click.option("--cookie", help="Of this cookie only, as `ovs-ofctl dump-flows` shows it: 0x1f...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["symbolic", "ofctl", "json"]),
    default="symbolic",
    show_default=True,
    help="symbolic: names instead of numbers; ofctl: as ovs-ofctl reads it; json: both, with owner and why.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: the same as --format json.")
@click.option("--why/--no-why", default=True, help="With symbolic: who asked for it, and why, above each.")
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
    """Print the flows and groups that the agent wants in the switch of this Node. Asks the agent that runs here.

    \b
    windlass flows --owner default/web
    windlass flows --owner Node --table L3Forwarding
    windlass flows --format ofctl --no-why

    Exit status: 0 they are printed (there may be none), 2 there is no agent to ask, or no such table.
    """
    filters = {"owner": owner, "table": table, "cookie": cookie}
    asked = {name: value for name, value in filters.items() if value is not None}
    try:
        where = answers.socket_of(socket, config)
        listed = _entries(where, "flows", asked)
        groups = _entries(where, "groups", asked) if table is None and cookie is None else []
    except answers.NoAnswer as error:
        answers.fail("flows", error)
        return
    if asked and not listed and not groups:
        what = " and ".join(f"{name} {value}" for name, value in asked.items())
        click.echo(
            f"windlass flows: nothing in the switch is of {what}; without options all flows are printed", err=True
        )
    colour = None if answers.coloured() else False
    for line in _lines("json" if as_json else form, listed, groups, why=why):
        click.echo(line, color=colour)


def _entries(socket: Path, member: str, asked: Mapping[str, str]) -> list[Entry]:
    content = answers.ask(socket, f"/v1/{member}", asked)
    entries = msgspec.json.decode(content, type=dict[str, list[Entry]])[member]
    return sorted(entries, key=lambda entry: (entry.place, entry.symbolic))


def _lines(form: str, flows: Sequence[Entry], groups: Sequence[Entry], *, why: bool) -> Iterator[str]:
    match form:
        case "symbolic":
            for one in (*flows, *groups):
                if why:
                    yield click.style(f"# {one.owner}: {one.why}" if one.why else f"# {one.owner}", dim=True)
                yield one.symbolic
        case "ofctl":
            yield from (one.ofctl for one in (*groups, *flows))  # a flow may name a group, which must be there
        case _:
            yield msgspec.json.format(msgspec.json.encode([*flows, *groups])).decode()
