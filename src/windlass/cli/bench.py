"""`windlass bench`: the benchmarks, thin over `windlass.bench`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click
from rich.console import Console

from windlass.bench import reports
from windlass.cli import outputs
from windlass.lab.sandbox.labs import LabError

BENCHMARKS = {
    "sync": "100,000 flows and 10,000 groups into the switch; one changed flow; a restart",
    "services": "10,000 Services with ten endpoints each into the switch; one changed endpoint",
    "cni": "attaching and detaching a Pod",
    "continuity": "new and held connections while the agent is killed and endpoints and Services change",
    "datapath": "passes, ct actions and megaflows that a packet costs in the switch",
    "cluster": "new and held connections while parts of a real cluster are killed",
    "watch": "one endpoint changed, from a write to a real API server to the switch's answer, with many Services",
}


@click.command(epilog="\b\n" + "\n".join(f"{name}  {what}" for name, what in BENCHMARKS.items()))
@click.argument("name", type=click.Choice(list(BENCHMARKS)))
@click.option("--json", "json_file", type=outputs.FILE, help="Write the figures for machines to this file.")
def bench(name: str, json_file: Path | None) -> None:
    """Run the benchmark NAME. Each figure stands beside its floor, the quickest other way, measured in the same run."""
    module = importlib.import_module(f"windlass.bench.{name}")
    try:
        report = module.run(lambda sentence: click.echo(sentence, err=True))
    except LabError as error:
        click.echo(f"windlass bench: {error}", err=True)
        sys.exit(2)
    Console(highlight=False).print(reports.to_table(report))
    if json_file:
        json_file.write_bytes(reports.to_json(report))
