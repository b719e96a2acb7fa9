"""Keeps one cluster running to look around in, and finds those that run: `windlass lab up | down | status | exec`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from windlass.host.linux import namespaces
from windlass.lab import labs, runs
from windlass.lab.agents import Agents, Programs
from windlass.lab.labs import Description, Lab, LabError
from windlass.lab.scenarios import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from windlass.lab.labs import Place


def up(path: Path, *, programs: Programs | None = None, detach: bool = False, say: runs.Say = print) -> None:
    """Brings the scenario at `path` to its last step without sending its probes, and keeps it until Ctrl-C or `down`.

    Detached, a process of its own keeps it; this one returns when the cluster stands.
    """
    nodes = programs or Programs()
    runs.check_machine(nodes)
    scenario = _the_one(path)
    if detach:
        _in_the_background(lambda tell: asyncio.run(_keep(scenario, nodes, tell)), say)
    else:
        with suppress(KeyboardInterrupt):
            asyncio.run(_keep(scenario, nodes, say))


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


def status() -> list[Description]:
    return labs.running()


def enter(name: str, command: Sequence[str], lab_id: str | None = None) -> None:
    """Becomes the command, in the network of a Node, a Pod or a host. Tools of Open vSwitch find the Node's switch."""
    place = _place(_chosen(lab_id), name)
    environment = {**os.environ, **_environment(place)}
    with namespaces.entered(namespaces.path_of(place.namespace)):
        os.execvpe(command[0], list(command), environment)  # noqa: S606 (this is what `exec` is for)


async def _keep(scenario: Scenario, programs: Programs, say: runs.Say) -> None:
    keeping = asyncio.current_task()
    assert keeping  # noqa: S101 (for mypy: a coroutine that runs has a task)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, keeping.cancel)
    with suppress(asyncio.CancelledError):
        async with runs.standing(scenario, lambda lab: Agents(lab, programs)) as cluster:
            for step, world in scenario.worlds():
                await cluster.reach(world, step.actions)
            cluster.describe(scenario.name)
            say(f"lab {cluster.lab.id} stands: {', '.join(cluster.places())}")
            await asyncio.get_running_loop().create_future()  # until somebody ends us


def _the_one(path: Path) -> Scenario:
    found = list(runs.read([path]))
    if len(found) != 1:
        raise LabError(f"{path}: holds {len(found)} scenarios; name the one to bring up")
    if not isinstance(found[0], Scenario):
        raise LabError(found[0].error)
    return found[0]


def _chosen(lab_id: str | None) -> Description:
    standing = labs.running()
    if lab_id is None and len(standing) == 1:
        return standing[0]
    for description in standing:
        if description.id == lab_id:
            return description
    known = ", ".join(f"{d.id} ({d.scenario})" for d in standing) or "none"
    raise LabError(f"which lab? {'no lab runs as ' + lab_id if lab_id else 'give its id'}; running: {known}")


def _place(lab: Description, name: str) -> Place:
    for kind in ("", "node/", "pod/", "pod/default/", "externalHost/"):
        if kind + name in lab.places:
            return lab.places[kind + name]
    raise LabError(f"{name} is none of the places of lab {lab.id}: {', '.join(lab.places)}")


def _environment(place: Place) -> Mapping[str, str]:
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
