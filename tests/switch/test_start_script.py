"""What `start-ovs-vswitchd.sh` does to a real database before ovs-vswitchd starts."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from bridge_ports import SPEC
from platforms import not_on_windows
from switches import Switch, requires_ovs, run
from windlass.switch.bridges import add_uplink, end_wait, ensure_bridge
from windlass.switch.ovsdb import open_database

pytestmark = requires_ovs
needs_a_shell = not_on_windows("it runs a script of the shell, for Nodes with Linux")

SCRIPT = str(files("windlass.switch") / "start-ovs-vswitchd.sh")
THIS_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def make_port(boot: str, switch: Switch) -> None:
    """Leave the database as an agent does that made the NIC a port in this boot."""
    await switch.add_nics("eth0")
    async with open_database(str(switch.database)) as database:
        await ensure_bridge(database, SPEC)
        await add_uplink(database, replace(SPEC, boot=boot))


async def prepare(switch: Switch) -> list[str]:
    """The ports of the bridge afterwards."""
    await switch.stop_vswitchd()
    await run("env", f"OVS_RUNDIR={switch.rundir}", SCRIPT, "--prepare")
    return (await switch.vsctl("--no-wait", "list-ports", "br-int")).split()


@needs_a_shell
async def test_an_uplink_of_another_boot_is_removed_from_the_bridge(switch: Switch) -> None:
    await make_port("another", switch)
    await switch.vsctl("set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true", "other_config:other=kept")
    assert await prepare(switch) == ["windlass-gw0"]
    assert "flow-restore-wait" not in (
        left := await switch.vsctl("--no-wait", "get", "Open_vSwitch", ".", "other_config")
    )
    assert "kept" in left


@needs_a_shell
@pytest.mark.parametrize("boot", [THIS_BOOT, ""], ids=["this boot", "unknown"])
async def test_an_uplink_port_of_this_or_an_unknown_boot_is_kept(switch: Switch, boot: str) -> None:
    await make_port(boot, switch)
    assert sorted(await prepare(switch)) == ["eth0", "windlass-gw0"]


@needs_a_shell
async def test_adding_the_uplink_again_updates_its_boot_id(switch: Switch) -> None:
    await make_port("another", switch)
    async with open_database(str(switch.database)) as database:
        await add_uplink(database, replace(SPEC, boot=THIS_BOOT))
    assert sorted(await prepare(switch)) == ["eth0", "windlass-gw0"]


@needs_a_shell
async def test_an_empty_database_needs_no_preparation(switch: Switch) -> None:
    await run("env", f"OVS_RUNDIR={switch.rundir}", SCRIPT, "--prepare")


async def test_ending_the_wait_keeps_other_settings(switch: Switch) -> None:
    await switch.vsctl("--", "init", "--", "set", "Open_vSwitch", ".", "other_config:other=kept")
    async with open_database(str(switch.database)) as database:
        await end_wait(database)  # without a wait: nothing happens
        await switch.vsctl("set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
        await database.wait_for(lambda view: view.root and "flow-restore-wait" in view.root.other_config)
        await end_wait(database)
    assert (await switch.vsctl("get", "Open_vSwitch", ".", "other_config")).strip() == "{other=kept}"


def test_the_script_is_executable() -> None:
    assert os.access(SCRIPT, os.X_OK)
