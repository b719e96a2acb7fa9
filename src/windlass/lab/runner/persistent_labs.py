"""Clusters that keep running for inspection: `windlass lab up | down | status | exec`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from windlass.host.linux import namespaces
from windlass.lab.control.kubernetes_binaries import path_of
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.kubelets import clusters as kubelets
from windlass.lab.kubelets.clusters import Shape
from windlass.lab.kubelets.machines import search_path
from windlass.lab.kubelets.relays import reachable
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabDescription, LabError, Location
from windlass.lab.sandbox.processes import program
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.scenario_files import Scenario, ScenarioError


def up(
    path: Path,
    *,
    programs: Programs | None = None,
    publisher_of: runs.PublisherOf = ManifestFolder,
    detach: bool = False,
    say: Say = print,
) -> None:
    """Brings the scenario at `path` to its last step without sending its probes, and keeps it until Ctrl-C or `down`.

    With `detach`, a background process keeps it, and this call returns when the cluster is up.
    """
    nodes = programs or Programs()
    runs.check_machine(nodes)
    try:
        scenario = scenario_files.find_one(path).read()
    except ScenarioError as error:
        raise LabError(str(error)) from None
    _run(partial(_keep, scenario, nodes, publisher_of), say, detach=detach)


def up_kubelets(shape: Shape, *, detach: bool = False, say: Say = print) -> None:
    """The same with a whole Kubernetes of this shape."""
    runs.check_machine(Programs())
    _run(partial(_keep_kubelets, shape), say, detach=detach)


def _run(keep: Callable[[Say, Say], Coroutine[None, None, None]], say: Say, *, detach: bool) -> None:
    if detach:
        _in_the_background(lambda tell: asyncio.run(_until_ended(keep(tell, lambda _: None))), say)
    else:
        with suppress(KeyboardInterrupt):
            asyncio.run(_until_ended(keep(say, say)))


def down(lab_id: str | None = None) -> str:
    """Ends a running lab, waits until it has removed everything, and returns its id."""
    found = _chosen(lab_id)
    lab = Lab(found.id)
    lock = os.open(lab.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.kill(found.pid, signal.SIGTERM)
        fcntl.flock(lock, fcntl.LOCK_SH)  # the lab's process holds it until the cleanup is done
    finally:
        os.close(lock)
    return found.id


def enter(name: str, command: Sequence[str], lab_id: str | None = None) -> None:
    """Replaces this process by the command, in the network of a Node, a Pod or a host.

    On a Node, the tools of Open vSwitch find its switch.
    """
    location = _location(_chosen(lab_id), name)
    own = {"OVS_RUNDIR": location.ovs_run_directory} if location.ovs_run_directory else {}
    environment = {**os.environ, **own}
    if location.pid:  # a machine with its own files, processes and host name
        environment["PATH"] = search_path()
        inside = ("-t", str(location.pid), "--mount", "--uts", "--pid", "--net", f"--wd={os.sep}")
        os.execve(program("nsenter"), ["nsenter", *inside, "--", *command], environment)  # noqa: S606
    with namespaces.entered(namespaces.path_of(location.namespace)):
        os.execvpe(command[0], list(command), environment)  # noqa: S606 (this is what `exec` is for)


async def _keep(
    scenario: Scenario, programs: Programs, publisher_of: runs.PublisherOf, say: Say, _progress: Say
) -> None:
    async with runs.at_last_step(scenario, lambda lab: Agents(lab, programs, publisher_of(lab))) as cluster:
        places = cluster.places()
        labs.describe(
            cluster.lab, LabDescription(cluster.lab.id, os.getpid(), scenario.name, cluster.fabric.dataplane, places)
        )
        say(f"lab {cluster.lab.id} is up: {', '.join(places)}")
        await asyncio.get_running_loop().create_future()  # until it is cancelled


async def _keep_kubelets(shape: Shape, say: Say, progress: Say) -> None:
    async with kubelets.running(shape, progress) as cluster, reachable(cluster.plane) as kubeconfig:
        cluster.describe()
        say(
            f"lab {cluster.lab.id} is up: {', '.join(cluster.shape.names)}\n"
            f"  export KUBECONFIG={kubeconfig}  # kubectl is {path_of('kubectl')}"
        )
        await asyncio.get_running_loop().create_future()


async def _until_ended(keeping: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(keeping)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def _chosen(lab_id: str | None) -> LabDescription:
    running = labs.running()
    if lab_id is None and len(running) == 1:
        return running[0]
    for description in running:
        if description.id == lab_id:
            return description
    known = ", ".join(f"{d.id} ({d.scenario})" for d in running) or "none"
    problem = f"there is no lab {lab_id}" if lab_id else "name one lab by its id"
    raise LabError(f"{problem}; running labs: {known}")


def _location(lab: LabDescription, name: str) -> Location:
    for kind in ("", "node/", "pod/", "pod/default/", "externalHost/"):
        if kind + name in lab.places:
            return lab.places[kind + name]
    raise LabError(f"lab {lab.id} has no {name}; it has {', '.join(lab.places)}")


def _in_the_background(job: Callable[[Say], None], say: Say) -> None:
    """Forks. Returns when the job has reported its first message; raises if it ends without one."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        _run_daemon(job, reading, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read().strip()
    if not text or text.startswith("error: "):
        raise LabError(text.removeprefix("error: ") or "the background process of the lab ended without a message")
    say(text)


def _run_daemon(job: Callable[[Say], None], reading: int, writing: int) -> None:
    """Runs the job in its own session without a terminal; the pipe stays open until the first message."""
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)

    def tell(text: str) -> None:
        os.write(writing, text.encode())
        os.close(writing)

    try:
        job(tell)
    except LabError as error:
        tell(f"error: {error}")
    finally:
        os._exit(0)
