"""`windlass support-bundle` on a Node with everything, with nothing, and with parts that hang or talk without end."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp.web
import yaml
from agent_nodes import NODE, AgentNode, agent_node, peer

from switches import requires_ovs
from windlass.host.linux import namespaces
from windlass.support import bundles, sources
from windlass.support.bundles import collect, packed, summary
from windlass.support.items import BundleItem
from windlass.support.sources import LARGEST, Unavailable, command

HIDDEN = "hunter2-and-more"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default", "annotations": {"note": HIDDEN}},
    "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"name": "http", "port": 80}]},
}
WINDLASS = (sys.executable, "-c", "import sys; sys.modules.update(rich=None); from windlass.cli import main; main()")


async def windlass(*arguments: str, where: Path, namespace: str = "") -> subprocess.CompletedProcess[bytes]:
    def run() -> subprocess.CompletedProcess[bytes]:
        command = [*WINDLASS, "support-bundle", *arguments]
        if not namespace:
            return subprocess.run(command, cwd=where, capture_output=True, check=False)
        with namespaces.entered(namespaces.path_of(namespace)):
            return subprocess.run(command, cwd=where, capture_output=True, check=False)

    return await asyncio.to_thread(run)


def contents(bundle: bytes) -> dict[str, str]:
    """The files of the bundle, by name."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert len({name.split("/")[0] for name in texts}) == 1
    return {name.partition("/")[2]: text for name, text in texts.items()}


@asynccontextmanager
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as made:
        made.write("cluster.yaml", NODE, peer("node-2", "10.176.25.12", "172.16.2.0/24"), SERVICE)
        await made.switch.start()
        await made.start_agent()
        await made.ready()
        yield made


@requires_ovs
async def test_a_whole_node(tmp_path):
    async with node() as made:
        config = made.folder / "windlass.yaml"
        options = yaml.safe_load(config.read_text())
        config.write_text(config.read_text() + f"# the old password: {HIDDEN}\n")
        done = await windlass("--config", str(config), where=tmp_path, namespace=made.namespace)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("windlass-node-1-2")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = done.stderr.decode()
    assert f"The bundle is in {file}" in said
    bundle = contents(file.read_bytes())

    assert json.loads(bundle["status.json"])["ready"] is True
    assert any("web" in flow["owner"] for flow in json.loads(bundle["flows.json"])["flows"])
    assert "nw_dst=10.96.0.10" in bundle["switch/flows.txt"] or "ip_dst=10.96.0.10" in bundle["switch/flows.txt"]
    assert "br-int" in bundle["switch/database.txt"]
    assert "dpif/show" in bundle["switch/vswitchd.txt"]
    assert "windlass_ready 1.0" in bundle["metrics.txt"]
    assert "converged" in bundle["logs/agent.log"]
    assert "10.176.25.11" in bundle["host/interfaces.txt"]
    assert "windlass" in bundle["host/nftables.txt"]
    assert bundle["host/rules.txt"].startswith("### ip -4 rule\n")
    assert "kernel: " in bundle["versions.txt"]
    assert json.loads(bundle["cluster.json"])["services"]["default/web"]["spec"]["clusterIP"] == "10.96.0.10"
    assert yaml.safe_load(bundle["configuration/windlass.yaml"]) == options
    assert "is the uplink of br-int" in bundle["preflight.txt"]
    assert not [name for name, text in bundle.items() if HIDDEN in text]

    readme = bundle.pop("README.txt")
    for name in bundle:
        assert f"  {name} " in readme
        assert f"  {name} " in said
    assert "Never collected" in readme


async def test_a_machine_without_agent_or_switch(tmp_path):
    """Nothing runs and there is no configuration: the bundle says what is missing."""
    config = tmp_path / "windlass.yaml"
    config.write_text(
        f"runDirectory: {tmp_path}/run\novsRunDirectory: {tmp_path}/ovs\nstateDirectory: {tmp_path}/state\n"
    )
    done = await windlass("--config", str(config), "--output", "-", where=tmp_path)
    assert done.returncode == 0, done.stderr
    bundle = contents(done.stdout)
    readme = bundle["README.txt"]
    assert "host/routes.txt" in bundle
    assert "status.json" not in bundle
    assert f"{tmp_path}/run/agent.sock: no agent listens here" in readme
    assert f"{tmp_path}/state holds no state of the cluster" in readme
    assert f"{tmp_path}/ovs/ovs-vswitchd.pid: No such file or directory" in readme
    assert b"The bundle is in standard output" in done.stderr

    none = await windlass("--config", str(tmp_path / "none.yaml"), "--output", str(tmp_path / "b"), where=tmp_path)
    assert none.returncode == 0
    assert b"none.yaml: cannot be read: No such file or directory; the defaults are used" in none.stderr
    assert "README.txt" in contents((tmp_path / "b").read_bytes())


async def test_an_unwritable_path_is_reported(tmp_path):
    done = await windlass("--output", str(tmp_path / "nowhere" / "bundle.tar.gz"), where=tmp_path)
    assert done.returncode == 1
    assert b"nowhere/bundle.tar.gz: cannot be written: No such file or directory" in done.stderr
    assert b"Traceback" not in done.stderr


async def test_the_bundle_of_a_hanging_agent_lacks_only_the_agents_parts(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()

    async def never(_request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(never), shutdown_timeout=0.1)
    await runner.setup()
    await aiohttp.web.UnixSite(runner, str(tmp_path / "run" / "agent.sock")).start()
    config = tmp_path / "windlass.yaml"
    config.write_text(f"runDirectory: {tmp_path}/run\n")
    try:
        done = await windlass("--config", str(config), "--output", "-", where=tmp_path)
    finally:
        await runner.cleanup()
    assert done.returncode == 0
    bundle = contents(done.stdout)
    assert "host/routes.txt" in bundle
    assert "the agent does not answer within 8 s" in bundle["README.txt"]


async def test_each_part_is_limited_in_time_and_size(monkeypatch):
    monkeypatch.setattr(bundles, "SECONDS", 0.05)

    async def forever() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def large() -> bytes:
        return b"x" * (LARGEST + 1)

    async def broken() -> bytes:
        raise ZeroDivisionError(f"token={HIDDEN}")

    async def absent() -> bytes:
        raise Unavailable("there is none")

    async def small() -> bytes:
        return f"password={HIDDEN}".encode()

    parts = [BundleItem(each.__name__, "a part", each) for each in (forever, large, broken, absent, small)]
    collected = {one.item.name: one for one in await collect(parts)}
    assert collected["forever"].missing == "it took more than 0.05 s"
    assert collected["large"].content.endswith(b"(truncated: there are more than 10 MiB)\n")
    assert collected["absent"].missing == "there is none"
    assert collected["broken"].missing.startswith("unexpected: ZeroDivisionError")
    assert collected["small"].content == b"password=<redacted>"
    every = packed("x", list(collected.values()), time.time()) + "\n".join(summary(list(collected.values()))).encode()
    assert HIDDEN.encode() not in every
    assert set(contents(packed("x", list(collected.values()), time.time()))) == {"README.txt", "large", "small"}


async def test_a_command_with_endless_output_is_ended(monkeypatch):
    monkeypatch.setattr(sources, "LARGEST", 1000)
    assert len(await command("yes")) > 1000


async def test_a_command_that_times_out_is_killed(tmp_path):
    """Otherwise its process would outlive the bundle."""
    note = tmp_path / "pid"
    task = asyncio.create_task(command("sh", "-c", f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000"))
    while not await asyncio.to_thread(note.exists):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    process = Path("/proc") / note.read_text().strip()
    while await asyncio.to_thread(process.exists):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
