"""Returns the NIC: restores the Node's network as it was before Windlass. The Node is reachable all the time.

First the NIC gets the addresses and routes that the bridge interface also has, which is still preferred. Then the
bridge is deleted in one transaction, which Open vSwitch carries out even if this process is killed. Everything else is
removed afterwards. All steps can be repeated.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from windlass.channels import local
from windlass.host.plans import HostNames
from windlass.host.protocol import Host
from windlass.nodes.config import Config
from windlass.switch import conntrack_timeouts
from windlass.switch.bridge_differences import interfaces_with, uplink_of
from windlass.switch.bridge_specs import Role
from windlass.switch.bridges import delete_bridge
from windlass.switch.controls import control_socket
from windlass.switch.ovsdb import Database, open_database
from windlass.switch.streams import SwitchUnreachableError

SWITCH_FOLDER = "switch"  # in the state directory: the chart's Open vSwitch has its database there
_LOOK_AGAIN = 0.02  # seconds
_SECONDS_TO_END = 8.0  # that a daemon gets after SIGTERM; less than the termination grace period of its Pod


class AgentRunsError(Exception):
    """An agent serves this Node. It would take the NIC again."""


async def release(config: Config, host: Host, say: Callable[[str], None]) -> list[str]:
    """Returns a sentence for each step that failed."""
    problems: list[str] = []
    try:
        async with open_database(str(config.ovsdb_socket)) as database:
            uplink = await host.uplink.recorded() or uplink_of(database.view, config.bridge)
            await _lend(config, host, uplink)
            await conntrack_timeouts.remove(database, config.datapath_type.value)
            await _delete_bridge(config, host, database, uplink, say)
        is_switch_running = True
    except SwitchUnreachableError as error:
        is_switch_running = False
        uplink = await host.uplink.recorded()
        await _lend(config, host, uplink)
        await _detach(config, host, uplink)
        problems += _database_left(config, str(error))
    if uplink:
        await host.uplink.release(uplink, config.bridge, keep_record=True)  # the record is needed to clean up
        say(f"{uplink} has its addresses and routes")
    left = await host.clean(HostNames(uplink or config.uplink, config.bridge, config.gateway))
    if left:  # the files on disk are needed for the next attempt
        return [*problems, *left]
    say("routes, rules, nftables, Pod links and settings of Windlass are removed")
    return [*problems, *_remove_files(config, keep_switch=is_switch_running)]


async def hand_over(config: Config, host: Host, say: Callable[[str], None]) -> None:
    """Called when ovs-vswitchd has ended: the Node keeps its network.

    The userspace datapath no longer forwards, so the NIC is returned to the host until the agent takes it again. The
    kernel datapath keeps forwarding until an agent has programmed the next ovs-vswitchd; if no agent runs, the NIC is
    returned, too.
    """
    if not await _ends(lambda: _switch_answers(config)):
        return
    uplink = await host.uplink.recorded()
    if uplink is None:
        return
    if not config.is_userspace:
        if not await _ends(lambda: _answers(config.api_socket)):
            say(f"{uplink} stays in {config.bridge}: an agent runs, and the kernel forwards until a new switch does")
            return
        await _detach(config, host, uplink)
    await host.uplink.release(uplink, config.bridge)
    say(f"{uplink} has its addresses and routes until an agent takes it again")


@asynccontextmanager
async def without_agent(config: Config, seconds: float) -> AsyncIterator[None]:
    """Ensures that no agent runs within the block. Waits this many seconds for a running agent to end."""
    socket = config.api_socket
    if not await _ends(lambda: _answers(socket), seconds):
        raise AgentRunsError(
            f"{socket}: an agent serves this Node, and would take the NIC again; stop it first (delete DaemonSet "
            "windlass-agent, or stop its service), or have this command wait for its end: --wait 60"
        )
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    try:
        async with local.listening(socket, _Placeholder):
            yield
    finally:
        with suppress(OSError):
            socket.parent.rmdir()  # not if it contains other files, or is a mount point


class _Placeholder(asyncio.Protocol):
    """Occupies the agent's socket and closes every connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _lend(config: Config, host: Host, uplink: str | None) -> None:
    if uplink:
        await host.uplink.lend(uplink, config.bridge)


async def _delete_bridge(
    config: Config, host: Host, database: Database, uplink: str | None, say: Callable[[str], None]
) -> None:
    if config.bridge not in database.view.bridges:
        return
    pods = len(interfaces_with(database.view, config.bridge, Role.POD))
    try:
        await delete_bridge(database, config.bridge)
    except SwitchUnreachableError:  # ovsdb-server runs without ovs-vswitchd; the change is in the database
        await _detach(config, host, uplink)
    say(f"{config.bridge} is deleted with all its ports")
    if pods:
        say(f"{pods} Pods have lost their network: delete them, so that they are created again")


async def _detach(config: Config, host: Host, uplink: str | None) -> None:
    if uplink:
        await host.uplink.detach(HostNames(uplink, config.bridge, config.gateway))


def _database_left(config: Config, error: str) -> list[str]:
    """Open vSwitch would take the NIC again when it starts, unless its database goes with the state directory."""
    if (Path(config.state_directory) / SWITCH_FOLDER).exists():
        return []
    left = (
        f"{error}. Its database may still hold bridge {config.bridge} with the NIC, which Open vSwitch would take when "
        f"it starts: run this again then, or `ovs-vsctl --no-wait del-br {config.bridge}` with ovsdb-server alone"
    )
    return [left]


def _remove_files(config: Config, *, keep_switch: bool) -> list[str]:
    problems = []
    state = Path(config.state_directory)
    for path in sorted(state.iterdir()) if state.is_dir() else ():
        if keep_switch and path.name == SWITCH_FOLDER:
            continue
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            problems.append(f"{path}: cannot be removed: {error.strerror}")
    with suppress(OSError):
        state.rmdir()  # not if files are left, or if it is a mount point
    config.cni_socket.unlink(missing_ok=True)
    return problems


async def _ends(answers: Callable[[], bool], seconds: float = _SECONDS_TO_END) -> bool:
    """Whether the other process stops answering within this time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while answers():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_AGAIN)
    return True


def _switch_answers(config: Config) -> bool:
    try:
        return _answers(Path(control_socket(config.ovs_run_directory)))
    except SwitchUnreachableError:
        return False


def _answers(socket: Path) -> bool:
    try:
        return local.is_served(socket)
    except OSError:
        return False
