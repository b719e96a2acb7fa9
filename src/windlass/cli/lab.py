"""`windlass lab`: clusters on this machine, from scenarios; thin over `windlass.lab`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from windlass.cli import outputs
from windlass.lab.control.api_servers import RealAPIServer
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.fuzz import features
from windlass.lab.fuzz import runs as fuzz_runs
from windlass.lab.fuzz.random_scenarios import random_scenario
from windlass.lab.kubelets.clusters import Shape
from windlass.lab.runner import persistent_labs, runs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabError
from windlass.model.nodes import TrafficMode


@click.group()
def lab() -> None:
    """Try a cluster's network on this machine, with real Open vSwitch and real packets.

    A scenario is a folder (or file) of Kubernetes manifests and probes; docs/scenarios.md tells the format.
    """


@lab.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=outputs.FILE, help="Write the result for machines to this file.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Scenarios to run side by side.")
@click.option(
    "--dataplane",
    type=click.Choice([*runs.FABRICS]),
    default="auto",
    show_default=True,
    help="What forwards: real Open vSwitch, by the kernel's datapath where there is one, else in user space.",
)
@click.option(
    "--cluster",
    type=click.Choice(["manifests", "apiserver"]),
    default="manifests",
    show_default=True,
    help="Where the agents take the objects from: a folder, or a real API server (see tools/build-kubernetes).",
)
def run(
    paths: tuple[Path, ...],
    json_file: Path | None,
    jobs: int,
    dataplane: str,
    cluster: str,
) -> None:
    """Run scenarios: bring each cluster up, send its probes, judge them, tear down.

    PATHS are YAML files, folders of them (one scenario each), or folders of such folders.

    Exit status: 0 all probes passed, 1 a probe failed, 2 a scenario could not be read or brought up.
    """
    sys.exit(
        runs.run(
            paths, json_file=json_file, jobs=jobs, fabric=runs.FABRICS[dataplane], publisher_of=_publisher(cluster)
        )
    )


def _publisher(cluster: str) -> runs.PublisherOf:
    return RealAPIServer if cluster == "apiserver" else ManifestFolder


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


@lab.command(epilog="Features: " + "; ".join(f"{name}: {words}" for name, words in features.FEATURES.items()) + ".")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="How many clusters to try.")
@click.option("--without", default="", callback=_names, metavar="NAMES", help="Features to leave out: a,b,c.")
@click.option(
    "--keep",
    type=outputs.FOLDER,
    default=fuzz_runs.KEEP,
    show_default=True,
    help="Where clusters that failed are written, each as a scenario in a folder seed-N.",
)
@click.option("--write", type=outputs.FOLDER, help="Only write the scenarios to this folder; run nothing.")
@click.option("--json", "json_file", type=outputs.FILE, help="Write the result for machines to this file.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Clusters to run side by side.")
def fuzz(
    seed: int,
    count: int,
    without: list[str],
    keep: Path,
    write: Path | None,
    json_file: Path | None,
    jobs: int,
) -> None:
    """Try random clusters: Nodes, Pods and Services by chance, probed, changed and probed again.

    Each seed is one cluster, always the same. What must come of each probe says an oracle that was written from
    Kubernetes' rules and shares no code with the agent. A cluster that fails is written as a scenario, for
    `windlass lab run` and to be added to the others as it is.

    \b
    windlass lab fuzz --seed 100 --count 20
    windlass lab fuzz --seed 117 --count 1 --write scenarios/found/117
    windlass lab fuzz --count 50 --without ipv6,agents

    Exit status: 0 all probes passed, 1 a probe failed, 2 a cluster could not be brought up.
    """
    try:
        chosen = features.without(without)
    except features.UnknownFeatureError as error:
        raise click.UsageError(str(error)) from error
    made = (random_scenario(number, chosen) for number in range(seed, seed + count))
    if not write:
        sys.exit(fuzz_runs.run(made, keep=keep, jobs=jobs, json_file=json_file))
    for one in made:
        folder = write / one.name if count > 1 else write
        one.write(folder)
        click.echo(f"{folder}: {one.title}, {one.probes} probes")


@lab.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--detach", is_flag=True, help="Return when the cluster stands; `windlass lab down` ends it.")
@click.option(
    "--cluster",
    type=click.Choice(["manifests", "apiserver", "kubelet"]),
    default="manifests",
    show_default=True,
    help="A scenario's objects from a folder or from a real API server; or a whole Kubernetes, with no scenario.",
)
@click.option("--nodes", type=click.IntRange(1, 9), default=2, show_default=True, help="With kubelet: how many Nodes.")
@click.option(
    "--zones", type=click.IntRange(0, 9), default=0, show_default=True, help="With kubelet: in so many zones."
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in TrafficMode]),
    default=TrafficMode.ENCAP.value,
    show_default=True,
    help="With kubelet: the traffic mode.",
)
def up(path: Path | None, detach: bool, cluster: str, nodes: int, zones: int, mode: str) -> None:
    """Bring a cluster up and keep it until Ctrl-C or `windlass lab down`.

    With PATH, that of a scenario, without sending its probes. With --cluster kubelet a whole Kubernetes: a kubelet and
    containerd for each Node, Windlass from its chart, CoreDNS, and a kubeconfig for you (see tools/build-kubernetes).

    \b
    windlass lab up scenarios/tour
    windlass lab up --cluster kubelet --nodes 3 --mode noEncap --detach
    """
    if (path is None) is not (cluster == "kubelet"):
        raise click.UsageError("give a scenario's PATH, or --cluster kubelet; not both")
    with _told():
        if path is None:
            persistent_labs.up_kubelets(Shape(nodes, TrafficMode(mode), zones), detach=detach, say=click.echo)
        else:
            persistent_labs.up(path, publisher_of=_publisher(cluster), detach=detach, say=click.echo)


@lab.command()
@click.argument("lab_id", required=False)
def down(lab_id: str | None) -> None:
    """End a running lab (LAB_ID where there are several) and remove all that it made."""
    with _told():
        click.echo(f"lab {persistent_labs.down(lab_id)} is gone")


@lab.command()
def status() -> None:
    """The labs that run on this machine, and where to look around in them."""
    with _told():
        running = labs.running()
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
    """Run a command in the network of a Node, a Pod or an external host of a running lab.

    \b
    windlass lab exec node-1 ovs-ofctl -O OpenFlow15 dump-flows br-int
    windlass lab exec default/shop-1 ip address
    """
    with _told():
        try:
            persistent_labs.enter(place, command, lab_id)
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
