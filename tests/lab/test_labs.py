"""Finding and removing labs on this machine, also after a crash, and the processes of their switches."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from labnet import CLIENT, FARAWAY, SERVER, needs_root

from switches import requires_ovs
from windlass.host.linux import namespaces
from windlass.lab.network import underlays
from windlass.lab.network.ovs import SwitchProcesses
from windlass.lab.runner import persistent_labs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabDescription, LabError, Location
from windlass.lab.sandbox.processes import Child
from windlass.lab.scenarios.segments import Machine, Nic, segments

CRASHING_LAB = """
import os, subprocess, sys
from windlass.host.linux import namespaces
from windlass.lab.network import underlays
from windlass.lab.sandbox import labs
with labs.opened() as lab:
    name = lab.namespace("node", "n1")
    underlays.make_namespace(name)
    with namespaces.entered(namespaces.path_of(name)):
        wait = [sys.executable, "-c", "import signal; signal.pause()"]
        ours = subprocess.Popen([*wait, f"{lab.folder}/x"], start_new_session=True, stdout=subprocess.DEVNULL)
        theirs = subprocess.Popen(wait, start_new_session=True, stdout=subprocess.DEVNULL)
    print(lab.id, ours.pid, theirs.pid, flush=True)
    os._exit(1)
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_root
def test_the_next_lab_removes_only_the_remains_of_crashed_labs(lab):
    crashed = subprocess.run([sys.executable, "-c", CRASHING_LAB], check=False, stdout=subprocess.PIPE, text=True)
    name, ours, theirs = crashed.stdout.split()
    dead = Lab(name)
    try:
        assert dead.namespaces
        assert is_running(ours)
        removed = labs.clean()
        assert dead in removed
        assert lab not in removed
        assert lab.folder.exists()
        assert not dead.folder.exists()
        assert dead.namespaces == []
        assert not is_running(ours)
        assert is_running(theirs)  # a person's shell in the namespace must survive
    finally:
        os.kill(int(theirs), signal.SIGKILL)


@needs_root
def test_a_running_lab_is_described_and_can_be_selected(lab):
    description = LabDescription(
        lab.id, os.getpid(), "mine", "ovs", {"node/n1": Location(lab.namespace("node", "n1"), "/x")}
    )
    labs.describe(lab, description)
    assert description in labs.running()
    assert persistent_labs._chosen(lab.id) == description
    assert persistent_labs._location(description, "n1").ovs_run_directory == "/x"
    with pytest.raises(LabError, match=r"lab \w+ has no n9; it has node/n1"):
        persistent_labs._location(description, "n9")
    with pytest.raises(LabError, match="there is no lab zzzz"):
        persistent_labs._chosen("zzzz")


def test_sockets_of_a_node_with_a_long_name_fit():
    folder = Lab("abcd").node_folder("n" * 253)
    assert len(str(folder / "ovs" / "ovs-vswitchd.ctl")) < 108
    assert folder != Lab("abcd").node_folder("n" * 252 + "m")


def test_subnets_share_a_wire_when_machines_or_nics_do():
    def wires(*machines):
        return [sorted(map(str, segment.subnets)) for segment in segments(machines)]

    assert wires(CLIENT, SERVER, FARAWAY) == [["10.7.0.0/24", "fd07::/64"], ["10.8.0.0/24", "fd08::/64"]]
    joint = Machine("host", "joint", (Nic("eth0", (*CLIENT.nics[0].addresses[:1], *FARAWAY.nics[0].addresses[1:])),))
    assert wires(CLIENT, FARAWAY, joint) == [["10.7.0.0/24", "10.8.0.0/24", "fd07::/64", "fd08::/64"]]


@needs_root
async def test_a_child_that_ends_is_an_error_with_the_end_of_its_log(lab, tmp_path):
    underlays.make_namespace(lab.namespace("host", "x"))
    child = Child(
        "the thing",
        ["sh", "-c", "echo no such luck; exit 3"],
        namespace=lab.namespace("host", "x"),
        folder=tmp_path,
        log=tmp_path / "log",
        environment={},
    )
    with pytest.raises(LabError, match=r"(?s)the thing ended with status 3; its log ends:\s+no such luck"):
        await child.listening(tmp_path / "socket")


@requires_ovs
async def test_switches_start_in_their_namespaces_restart_and_end(lab):
    switches = [
        SwitchProcesses.on_linux(name, lab.namespace("node", name), lab.node_folder(name) / "ovs")
        for name in ("a", "b")
    ]
    for name in ("a", "b"):
        underlays.make_namespace(lab.namespace("node", name))
    try:
        await asyncio.gather(*(switch.start() for switch in switches))
        await vsctl(switches[0], "add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
        await switches[0].restart()
        await vsctl(switches[0], "wait-until", "bridge", "br-int")  # the database stayed
        assert (await vsctl(switches[1], "list-br")).strip() == ""
        assert has_interface(lab.namespace("node", "a"), "br-int")
    finally:
        await asyncio.gather(*(switch.end() for switch in switches))
    assert labs._processes(lab) == []


def has_interface(namespace, name):
    with namespaces.entered(namespaces.path_of(namespace)):
        return name in dict(map(reversed, socket.if_nameindex()))


async def vsctl(switch, *arguments):
    process = await asyncio.create_subprocess_exec(
        "ovs-vsctl", "--timeout=5", *arguments, env={**os.environ, **switch.environment}, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
