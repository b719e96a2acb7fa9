"""`windlass bench`: runs one of the benchmarks of `windlass.bench`."""

from __future__ import annotations

import asyncio
import importlib
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from windlass.agent.logs import log_warnings_only
from windlass.bench import reports
from windlass.bench.bare_agents import InvalidRunError
from windlass.cli import outputs
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError

BENCHMARKS = {
    "sync": "install 100,000 flows and 10,000 groups in a switch; change one flow; restart",
    "services": "install 10,000 Services with ten endpoints each; change one endpoint",
    "cni": "attach and detach a Pod",
    "continuity": "new and held connections while the agent is killed, and endpoints and Services change",
    "datapath": "datapath passes, ct actions and megaflows of a packet; counted, not timed",
    "cluster": "new and held connections while parts of a real cluster are killed",
    "passes": "attach Pods, change endpoints and Nodes while full passes of the agent run",
    "policy": "install 1,000 policies of ten rules over 10,000 Pods; change one Pod, one policy, one namespace",
    "scale": "watch the Pods of other Nodes: the cost for an agent and for the API server",
    "windows": "start with 2,000 Services and change one endpoint on a Windows Node under Wine; the floor is Linux",
    "watch": "change one endpoint or one Pod: from the write to a real API server until the switch has the flows",
}
_WIDTH = max(map(len, BENCHMARKS))


@click.command(
    epilog="\b\nBenchmarks:\n" + "\n".join(f"  {name:{_WIDTH}}  {what}" for name, what in BENCHMARKS.items())
)
@click.argument("name", type=click.Choice(list(BENCHMARKS)), metavar="NAME")
@click.option("--json", "json_file", type=outputs.FILE, help="Also write the figures to this file, as JSON.")
def bench(name: str, json_file: Path | None) -> None:
    """Run the benchmark NAME.

    Each figure is printed next to its floor: the fastest other way to do the same, measured in the same run.
    """
    log_warnings_only()
    module = importlib.import_module(f"windlass.bench.{name}")
    try:
        runs.check_machine(Programs())
        report = asyncio.run(module.run(partial(click.echo, err=True)))
    except (LabError, InvalidRunError) as error:
        outputs.fail("bench", error)
    Console(highlight=False).print(reports.to_table(report))
    if json_file:
        json_file.write_bytes(reports.to_json(report))
