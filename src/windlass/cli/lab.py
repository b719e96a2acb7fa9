"""`windlass lab`: the commands of `windlass.lab`, clusters on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from windlass.agent.logs import log_warnings_only
from windlass.cli import outputs
from windlass.lab.control.api_servers import RealAPIServer
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.fuzz import features, seeds
from windlass.lab.fuzz import runs as fuzz_runs
from windlass.lab.fuzz.random_scenarios import random_scenario
from windlass.lab.kubelets.clusters import Shape
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import persistent_labs, runs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.wine.wine_machines import WindowsPrograms
from windlass.model.nodes import TrafficMode

_WINDOWS = click.option(
    "--windows",
    type=click.Choice(["linux", "wine"]),
    default="linux",
    show_default=True,
    help="How Nodes labelled kubernetes.io/os=windows run. linux: Linux programs, with the flows of a Windows Node. "
    "wine: the real agent and Open vSwitch for Windows, under Wine (tools/build-windows).",
)


@click.group()
def lab() -> None:
    """Run clusters on this machine, with real Open vSwitch and real packets.

    A scenario is a directory or file of Kubernetes manifests and probes; docs/scenarios.md describes the format.
    """
    log_warnings_only()


@lab.command(short_help="Run scenarios and judge their probes.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=outputs.FILE, help="Write the result as JSON to this file.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Scenarios to run in parallel.")
@click.option(
    "--dataplane",
    type=click.Choice([*runs.FABRICS]),
    default="auto",
    show_default=True,
    help="auto and ovs are the same: real Open vSwitch, with the kernel datapath if there is one, else in user space.",
)
@click.option(
    "--cluster",
    type=click.Choice(["manifests", "apiserver"]),
    default="manifests",
    show_default=True,
    help="Where agents read objects: a directory of manifests, or a real API server (tools/build-kubernetes).",
)
@_WINDOWS
def run(paths: tuple[Path, ...], json_file: Path | None, jobs: int, dataplane: str, cluster: str, windows: str) -> None:
    """Run scenarios: for each, start the cluster, send the probes, judge the results and remove everything.

    PATHS are YAML files, directories of them (one scenario each), or directories of such directories.

    \b
    Examples:
      windlass lab run scenarios/tour
      windlass lab run scenarios/ --jobs 2 --json results.json

    Exit status: 0 all probes passed, 1 a probe failed, 2 a scenario could not be read or started.
    """
    sys.exit(
        runs.run(
            paths,
            json_file=json_file,
            programs=_programs(windows),
            jobs=jobs,
            fabric=runs.FABRICS[dataplane],
            publisher_of=_publisher(cluster),
        )
    )


def _programs(windows: str) -> Programs:
    return Programs(windows=WindowsPrograms.default() if windows == "wine" else None)


def _publisher(cluster: str) -> runs.PublisherOf:
    return RealAPIServer if cluster == "apiserver" else ManifestFolder


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


@lab.command(
    short_help="Try random clusters against an independent oracle.",
    epilog="\b\nFeatures:\n" + "\n".join(f"  {name:<20}{words}" for name, words in features.FEATURES.items()),
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="How many clusters to try.")
@click.option("--without", default="", callback=_names, metavar="NAMES", help="Features to leave out: a,b,c.")
@click.option(
    "--with",
    "wanted",
    default="",
    callback=_names,
    metavar="NAMES",
    help="Features that every cluster has: a,b,c. Seeds without them are skipped.",
)
@click.option(
    "--keep",
    type=outputs.FOLDER,
    default=fuzz_runs.KEEP,
    show_default=True,
    help="Directory for clusters that failed: each is written as a scenario to seed-N.",
)
@click.option("--write", type=outputs.FOLDER, help="Only write the scenarios to this directory; run nothing.")
@click.option("--json", "json_file", type=outputs.FILE, help="Write the result as JSON to this file.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Clusters to run in parallel.")
def fuzz(
    seed: int,
    count: int,
    without: list[str],
    wanted: list[str],
    keep: Path,
    write: Path | None,
    json_file: Path | None,
    jobs: int,
) -> None:
    """Try random clusters: random Nodes, Pods and Services are probed, changed and probed again.

    The same seed always gives the same cluster. An oracle that follows the rules of Kubernetes and shares no code with
    the agent decides the expected result of each probe. A cluster that fails is written as a scenario for
    `windlass lab run`.

    \b
    Examples:
      windlass lab fuzz --seed 100 --count 20
      windlass lab fuzz --seed 117 --count 1 --write scenarios/found/117
      windlass lab fuzz --count 50 --without ipv6,agents
      windlass lab fuzz --count 50 --with policies,agents

    Exit status: 0 all probes passed, 1 a probe failed, 2 a cluster could not be started.
    """
    try:
        chosen = features.without(without)
        numbers = seeds.first_with(features.named(wanted), seed, count, chosen)
    except (features.UnknownFeatureError, seeds.NoClusterError) as error:
        raise click.UsageError(str(error)) from error
    made = (random_scenario(number, chosen) for number in numbers)
    if not write:
        sys.exit(fuzz_runs.run(made, keep=keep, jobs=jobs, json_file=json_file))
    for one in made:
        folder = write / one.name if count > 1 else write
        one.write(folder)
        click.echo(f"{folder}: {one.title}, {one.probes} probes")


@lab.command(short_help="Start a cluster and keep it.")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; `windlass lab down` removes it.")
@click.option(
    "--cluster",
    type=click.Choice(["manifests", "apiserver", "kubelet"]),
    default="manifests",
    show_default=True,
    help="manifests, apiserver: where agents read the scenario's objects. kubelet: a whole Kubernetes cluster.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 9), default=2, show_default=True, help="With kubelet: the number of Nodes."
)
@click.option(
    "--zones", type=click.IntRange(0, 9), default=0, show_default=True, help="With kubelet: the number of zones."
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in TrafficMode]),
    default=TrafficMode.ENCAP.value,
    show_default=True,
    help="With kubelet: the traffic mode.",
)
@_WINDOWS
def up(path: Path | None, detach: bool, cluster: str, nodes: int, zones: int, mode: str, windows: str) -> None:
    """Start a cluster and keep it until Ctrl-C or `windlass lab down`.

    With PATH: the cluster of a scenario; its probes are not sent. With --cluster kubelet: a whole Kubernetes cluster
    with a kubelet and containerd for each Node, Windlass from its chart, CoreDNS, and a kubeconfig
    (tools/build-kubernetes).

    \b
    Examples:
      windlass lab up scenarios/tour
      windlass lab up --cluster kubelet --nodes 3 --mode noEncap --detach
    """
    if (path is None) is not (cluster == "kubelet"):
        raise click.UsageError("give either the PATH of a scenario or --cluster kubelet")
    with _failing():
        if path is None:
            persistent_labs.up_kubelets(Shape(nodes, TrafficMode(mode), zones), detach=detach, say=click.echo)
        else:
            programs = _programs(windows)
            persistent_labs.up(path, programs=programs, publisher_of=_publisher(cluster), detach=detach, say=click.echo)


@lab.command(short_help="Remove a running lab.")
@click.argument("lab_id", required=False)
def down(lab_id: str | None) -> None:
    """Stop a running lab and remove everything that it created. LAB_ID is needed if several labs run."""
    with _failing():
        click.echo(f"lab {persistent_labs.down(lab_id)} is removed")


@lab.command(short_help="List running labs.")
def status() -> None:
    """List the labs that run on this machine, and the places in them where commands can run."""
    with _failing():
        running = labs.running()
        if not running:
            click.echo("no lab is running; start one with: windlass lab up scenarios/tour")
            return
        table = Table("lab", "scenario", "dataplane", "process", "places")
        for found in running:
            table.add_row(found.id, found.scenario, found.dataplane, str(found.pid), "\n".join(found.places))
        Console(highlight=False).print(table)


@lab.command(
    "exec",
    short_help="Run a command in a Node, Pod or external host.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--lab", "lab_id", help="The ID of the lab, if several run.")
@click.argument("place")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def enter(lab_id: str | None, place: str, command: tuple[str, ...]) -> None:
    """Run a command in the network namespace of a Node, a Pod or an external host of a running lab.

    \b
    Examples:
      windlass lab exec node-1 ovs-ofctl -O OpenFlow15 dump-flows br-int
      windlass lab exec default/shop-1 ip address
    """
    with _failing():
        try:
            persistent_labs.enter(place, command, lab_id)
        except FileNotFoundError:
            raise LabError(f"{command[0]}: this machine has no such command") from None


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except LabError as error:
        outputs.fail("lab", error)
