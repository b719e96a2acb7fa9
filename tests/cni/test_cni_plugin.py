"""The plugin executable alone: its errors without an agent, and that it does not trust the data of its peer."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager

import pytest

from platforms import not_on_windows
from windlass.cni.configurations import SUPPORTED_VERSIONS

pytestmark = not_on_windows("it is about the plugin for Linux; tests/windows has that for Windows")

CONFIG = {"cniVersion": "1.0.0", "name": "pods", "type": "windlass"}


def config(**rest) -> bytes:
    return json.dumps(CONFIG | rest).encode()


@asynccontextmanager
async def agent(path, converse):
    """Something that listens at `path`, and does what `converse` does with a connection."""

    async def connected(reader, writer):
        await converse(reader, writer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield str(path)
    finally:
        server.close()
        await server.wait_closed()


def says(data: bytes):
    async def converse(reader, writer):
        await reader.readline()
        writer.write(data)
        await writer.drain()

    return converse


async def test_version_needs_no_agent_and_agrees_with_it(plugin, run_plugin):
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "VERSION"}, b'{"cniVersion": "0.4.0"}')
    assert outcome.exit_code == 0
    assert outcome.json == {"cniVersion": "0.4.0", "supportedVersions": list(SUPPORTED_VERSIONS)}


@pytest.mark.parametrize(("command", "code"), [("ADD", 11), ("DEL", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)])
async def test_without_an_agent_the_error_names_the_socket_and_what_to_check(
    plugin, run_plugin, tmp_path, command, code
):
    socket = str(tmp_path / "nobody.sock")
    outcome = await run_plugin(plugin, {"CNI_COMMAND": command}, config(agentSocket=socket))
    assert outcome.exit_code == 1
    assert outcome.json["cniVersion"] == "1.0.0"
    assert outcome.json["code"] == code
    assert outcome.json["msg"] == f"the Windlass agent cannot be reached at {socket}: No such file or directory"
    assert "Check that the agent runs" in outcome.json["details"]


async def test_a_socket_without_an_agent_is_refused_at_once(plugin, run_plugin, tmp_path):
    async with agent(tmp_path / "left.sock", says(b"")) as socket:
        pass
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, config(agentSocket=socket))
    assert outcome.json["msg"].endswith("Connection refused")


async def test_the_default_socket_is_the_agents_default(plugin, run_plugin):
    """`agentSocket` is looked for in the outermost object only, and only as a key."""
    lookalikes = {"args": {"agentSocket": "/a"}, "x": ["agentSocket", {"agentSocket": "/b"}], "y": "agentSocket"}
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "STATUS"}, config(**lookalikes, z='"agentSocket": "/c"'))
    if outcome.exit_code:
        assert "/run/windlass/cni.sock" in outcome.json["msg"]


@pytest.mark.parametrize("value", [5, None, "", "a\x01b", "x" * 300, {"a": 1}])
async def test_an_unusable_socket_name_is_an_error_rather_than_a_guess(plugin, run_plugin, value):
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, config(agentSocket=value))
    assert (outcome.exit_code, outcome.json["code"]) == (1, 7)
    assert "agentSocket" in outcome.json["msg"]


async def test_escapes_in_the_socket_name_are_understood_and_written_back(plugin, run_plugin):
    raw = rb'{"agentSocket" : "\/a\\b\"c", "cniVersion":"1.0.0"}'
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, raw)
    assert '/a\\b"c' in outcome.json["msg"]


@pytest.mark.parametrize("text", [b"", b"{", b'{"agentSocket', b'{"agentSocket":', b'"\\', b"]]]]", b"\0\xff" * 50])
async def test_a_broken_configuration_is_left_to_the_agent(plugin, run_plugin, text):
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "VERSION"}, text)
    assert outcome.json["cniVersion"] == "1.1.0"


async def test_a_version_that_is_none_is_not_repeated(plugin, run_plugin):
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "VERSION"}, rb'{"cniVersion": "1\",\"x\":\""}')
    assert outcome.json["cniVersion"] == "1.1.0"


async def test_without_a_command_the_plugin_explains_itself(plugin, run_plugin):
    outcome = await run_plugin(plugin, {}, b"")
    assert (outcome.exit_code, outcome.json["code"]) == (1, 4)
    assert "CNI_COMMAND" in outcome.json["msg"]
    assert "container runtime" in outcome.json["details"]


async def test_too_much_is_refused(plugin, run_plugin):
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, b" " * (1024 * 1024 + 1))
    assert (outcome.exit_code, outcome.json["code"]) == (1, 7)
    outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD", "CNI_ARGS": "x" * 70_000}, b"")
    assert (outcome.exit_code, outcome.json["code"]) == (1, 4)


async def test_it_sends_its_variables_and_standard_input_unchanged(plugin, run_plugin, tmp_path):
    received = bytearray()

    async def converse(reader, writer):
        header = await reader.readline()
        sizes = header.split()[2:]
        received.extend(header + await reader.readexactly(sum(map(int, sizes))))
        writer.write(b"WINDLASS-CNI 1 0 3\nyes")
        await writer.drain()

    async with agent(tmp_path / "a.sock", converse) as socket:
        text = config(agentSocket=socket, pad="x" * 500_000)
        outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD", "CNI_X": "a=b", "PATH": "/bin"}, text)
    assert (outcome.exit_code, outcome.output) == (0, "yes")
    header, rest = bytes(received).split(b"\n", 1)
    assert header == b"WINDLASS-CNI 1 26 %d" % len(text)
    assert sorted(rest[:26].split(b"\0")) == [b"", b"CNI_COMMAND=ADD", b"CNI_X=a=b"]
    assert rest[26:] == text


async def test_an_answer_may_come_in_pieces(plugin, run_plugin, tmp_path):
    async def converse(reader, writer):
        for byte in b"WINDLASS-CNI 1 7 2\nok":
            writer.write(bytes([byte]))
            await writer.drain()

    async with agent(tmp_path / "a.sock", converse) as socket:
        outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, config(agentSocket=socket))
    assert (outcome.exit_code, outcome.output) == (7, "ok")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the connection was closed"),
        (b"WINDLASS-CNI 1 0", "the connection was closed"),
        (b"WINDLASS-CNI 1 0 10\nshort", "the connection was closed"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak"),
        (b"WINDLASS-CNI 2 0 0\n", "does not speak"),
        (b"WINDLASS-CNI 1 0 99999999999999999999\n", "does not speak"),
        (b"WINDLASS-CNI 1 256 0\n", "does not speak"),
        (b"WINDLASS-CNI 1 0 -1\n", "does not speak"),
        (b"x" * 100_000, "does not speak"),
        (b"\n", "does not speak"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(plugin, run_plugin, tmp_path, answer, words):
    async with agent(tmp_path / "a.sock", says(answer)) as socket:
        outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, config(agentSocket=socket))
    assert (outcome.exit_code, outcome.json["code"]) == (1, 11)
    assert words in outcome.json["msg"]


async def test_an_agent_that_refuses_before_it_has_read_all_is_still_heard(plugin, run_plugin, tmp_path):
    async with agent(tmp_path / "a.sock", says(b"WINDLASS-CNI 1 1 2\nno")) as socket:
        outcome = await run_plugin(plugin, {"CNI_COMMAND": "ADD"}, config(agentSocket=socket, pad="x" * 900_000))
    assert (outcome.exit_code, outcome.output) == (1, "no")


async def test_nothing_lasts_longer_than_the_deadline(compile_plugin, run_plugin, tmp_path):
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "gcc"
    impatient = compile_plugin("impatient", "-DWINDLASS_CNI_SECONDS=1", compiler=compiler)

    async def converse(reader, writer):
        await reader.read()  # until the plugin has gone

    async with agent(tmp_path / "a.sock", converse) as socket:
        outcome = await run_plugin(impatient, {"CNI_COMMAND": "ADD"}, config(agentSocket=socket))
    assert (outcome.exit_code, outcome.json["code"]) == (1, 11)
    assert outcome.json["msg"] == f"timed out waiting for the Windlass agent at {socket}"


async def test_a_runtime_that_closes_its_end_is_no_crash(plugin):
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        plugin, env={"CNI_COMMAND": "VERSION"}, stdin=asyncio.subprocess.DEVNULL, stdout=writing
    )
    os.close(writing)
    assert await process.wait() == 1  # not -SIGPIPE


@pytest.mark.parametrize("compiler", ["musl-gcc", "gcc"])
def test_the_analyzer_finds_nothing(compile_plugin, compiler):
    compile_plugin("windlass-cni", "-fanalyzer", compiler=compiler)


def test_it_builds_for_windows(compile_plugin, tmp_path):
    executable = compile_plugin("windlass-cni.exe", "-fanalyzer", compiler="x86_64-w64-mingw32-gcc")
    if (wine := shutil.which("wine")) is None:
        pytest.skip("compiled without a warning; to run it needs wine")
    environment = {"CNI_COMMAND": "VERSION", "HOME": str(tmp_path), "WINEDEBUG": "-all"}
    done = subprocess.run([wine, executable], env=environment, input=b"{}", capture_output=True, check=True)
    assert json.loads(done.stdout)["supportedVersions"] == list(SUPPORTED_VERSIONS)
