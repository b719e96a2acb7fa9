"""Keeps one cluster running to look around in, and finds those that run: `windlass lab up | down | status | exec`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from windlass.host.linux import namespaces
from windlass.lab.control.kubernetes_binaries import path_of
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.kubelets import clusters as kubelets
from windlass.lab.kubelets.machines import search_path
from windlass.lab.kubelets.relays import reachable
from windlass.lab.orchestration.agents import Agents, Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabDescription, LabError
from windlass.lab.sandbox.processes import program
from windlass.lab.scenarios.scenario_files import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from windlass.lab.kubelets.clusters import Shape
    from windlass.lab.sandbox.labs import Location


def up(
    path: Path,
    *,
    programs: Programs | None = None,
    publisher_of: runs.PublisherOf = ManifestFolder,
    detach: bool = False,
    say: runs.Say = print,
) -> None:
    """Brings the scenario at `path` to its last step without sending its probes, and keeps it until Ctrl-C or `down`.

    Detached, a process of its own keeps it; this one returns when the cluster stands.
    """
    nodes = programs or Programs()
    runs.check_machine(nodes)
    _stand(partial(_keep, _the_one(path), nodes, publisher_of), say, detach=detach)


def up_kubelets(shape: Shape, *, detach: bool = False, say: runs.Say = print) -> None:
    """The same with a whole Kubernetes, of this shape."""
    runs.check_machine(Programs())
    _stand(partial(_keep_kubelets, shape), say, detach=detach)


def _stand(keep: Callable[[runs.Say, runs.Say], Coroutine[None, None, None]], say: runs.Say, *, detach: bool) -> None:
    if detach:
        _in_the_background(lambda tell: asyncio.run(_until_ended(keep(tell, lambda _: None))), say)
    else:
        with suppress(KeyboardInterrupt):
            asyncio.run(_until_ended(keep(say, say)))


def down(lab_id: str | None = None) -> str:
    """Ends a running lab and waits until nothing of it is left; returns its id."""
    found = _chosen(lab_id)
    lab = Lab(found.id)
    lock = os.open(lab.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.kill(found.pid, signal.SIGTERM)
        fcntl.flock(lock, fcntl.LOCK_SH)  # the keeper holds it until it is done
    finally:
        os.close(lock)
    return found.id


def status() -> list[LabDescription]:
    return labs.running()


def enter(name: str, command: Sequence[str], lab_id: str | None = None) -> None:
    """Becomes the command, in the network of a Node, a Pod or a host. Tools of Open vSwitch find the Node's switch."""
    place = _place(_chosen(lab_id), name)
    environment = {**os.environ, **_environment(place)}
    if place.pid:  # a machine of its own: its files, processes and name, too
        environment["PATH"] = search_path()
        inside = ("-t", str(place.pid), "--mount", "--uts", "--pid", "--net", f"--wd={os.sep}")
        os.execve(program("nsenter"), ["nsenter", *inside, "--", *command], environment)  # noqa: S606
    with namespaces.entered(namespaces.path_of(place.namespace)):
        os.execvpe(command[0], list(command), environment)  # noqa: S606 (this is what `exec` is for)


async def _keep(
    scenario: Scenario, programs: Programs, publisher_of: runs.PublisherOf, say: runs.Say, _progress: runs.Say
) -> None:
    async with runs.standing(scenario, lambda lab: Agents(lab, programs, publisher_of(lab))) as cluster:
        for step, desired in scenario.states():
            await cluster.reach(desired, step.actions)
        cluster.describe(scenario.name)
        say(f"lab {cluster.lab.id} stands: {', '.join(cluster.places())}")
        await asyncio.get_running_loop().create_future()  # until somebody ends us


async def _keep_kubelets(shape: Shape, say: runs.Say, progress: runs.Say) -> None:
    async with kubelets.standing(shape, progress) as cluster, reachable(cluster.plane) as kubeconfig:
        cluster.describe()
        say(
            f"lab {cluster.lab.id} stands: {', '.join(cluster.shape.names)}\n"
            f"  export KUBECONFIG={kubeconfig}  # kubectl is {path_of('kubectl')}"
        )
        await asyncio.get_running_loop().create_future()


async def _until_ended(keeping: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(keeping)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def _the_one(path: Path) -> Scenario:
    found = list(runs.read([path]))
    if len(found) != 1:
        raise LabError(f"{path}: holds {len(found)} scenarios; name the one to bring up")
    if not isinstance(found[0], Scenario):
        raise LabError(found[0].error)
    return found[0]


def _chosen(lab_id: str | None) -> LabDescription:
    standing = labs.running()
    if lab_id is None and len(standing) == 1:
        return standing[0]
    for description in standing:
        if description.id == lab_id:
            return description
    known = ", ".join(f"{d.id} ({d.scenario})" for d in standing) or "none"
    raise LabError(f"which lab? {'no lab runs as ' + lab_id if lab_id else 'give its id'}; running: {known}")


def _place(lab: LabDescription, name: str) -> Location:
    for kind in ("", "node/", "pod/", "pod/default/", "externalHost/"):
        if kind + name in lab.places:
            return lab.places[kind + name]
    raise LabError(f"{name} is none of the places of lab {lab.id}: {', '.join(lab.places)}")


def _environment(place: Location) -> Mapping[str, str]:
    return {"OVS_RUNDIR": place.ovs_run_directory} if place.ovs_run_directory else {}


def _in_the_background(job: Callable[[runs.Say], None], say: runs.Say) -> None:
    """Forks; returns when the job has told its first sentence, raises when it ends without one."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        _as_keeper(job, reading, writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read().strip()
    if not text or text.startswith("error: "):
        raise LabError(text.removeprefix("error: ") or "the process that was to keep the lab ended without a word")
    say(text)


def _as_keeper(job: Callable[[runs.Say], None], reading: int, writing: int) -> None:
    """The keeper's whole life: a session of its own, no terminal, the pipe only until it has something to tell."""
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
