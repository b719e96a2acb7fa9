"""`windlass lab`: clusters on this machine, from scenarios; thin over `windlass.lab`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from windlass.lab import keepers, runs
from windlass.lab.labs import LabError


@click.group()
def lab() -> None:
    """Try a cluster's network on this machine, with real Open vSwitch and real packets.

    A scenario is a folder (or file) of Kubernetes manifests and probes; docs/scenarios.md tells the format.
    """


@lab.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the result for machines to this file."
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Scenarios to run side by side.")
@click.option(
    "--dataplane",
    type=click.Choice(["auto", "ovs"]),
    default="auto",
    show_default=True,
    help="What forwards: real Open vSwitch, by the kernel's datapath where there is one, else in user space.",
)
def run(paths: tuple[Path, ...], json_file: Path | None, jobs: int, dataplane: str) -> None:  # noqa: ARG001 (one so far)
    """Run scenarios: bring each cluster up, send its probes, judge them, tear down.

    PATHS are YAML files, folders of them (one scenario each), or folders of such folders.

    Exit status: 0 all probes passed, 1 a probe failed, 2 a scenario could not be read or brought up.
    """
    sys.exit(runs.run(paths, json_file=json_file, jobs=jobs))


@lab.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--detach", is_flag=True, help="Return when the cluster stands; `windlass lab down` ends it.")
def up(path: Path, detach: bool) -> None:
    """Bring a scenario's cluster up and keep it, without sending its probes, until Ctrl-C or `windlass lab down`."""
    with _told():
        keepers.up(path, detach=detach, say=click.echo)


@lab.command()
@click.argument("lab_id", required=False)
def down(lab_id: str | None) -> None:
    """End a running lab (LAB_ID where there are several) and remove all that it made."""
    with _told():
        click.echo(f"lab {keepers.down(lab_id)} is gone")


@lab.command()
def status() -> None:
    """The labs that run on this machine, and where to look around in them."""
    with _told():
        running = keepers.status()
        if not running:
            click.echo("no lab runs; start one: windlass lab up scenarios/tour")
            return
        table = Table("lab", "scenario", "dataplane", "process", "places")
        for found in running:
            table.add_row(found.id, found.scenario, found.dataplane, str(found.pid), "\n".join(found.places))
        Console(highlight=False).print(table)


@lab.command("exec", context_settings={"ignore_unknown_options": True})
@click.option("--lab", "lab_id", help="Which lab, where several run.")
@click.argument("place")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def enter(lab_id: str | None, place: str, command: tuple[str, ...]) -> None:
    r"""Run a command in the network of a Node, a Pod or an external host of a running lab.

    \b
    windlass lab exec node-1 ovs-ofctl -O OpenFlow15 dump-flows br-int
    windlass lab exec default/shop-1 ip address
    """
    with _told():
        try:
            keepers.enter(place, command, lab_id)
        except FileNotFoundError:
            raise LabError(f"{command[0]}: there is no such command on this machine") from None


@contextmanager
def _told() -> Iterator[None]:
    """Errors are sentences, and exit status 2."""
    try:
        yield
    except LabError as error:
        click.echo(f"windlass lab: {error}", err=True)
        sys.exit(2)
