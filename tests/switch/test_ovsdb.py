"""The OVSDB client against a real ovsdb-server, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms import not_on_windows
from stream_servers import serving_streams
from switches import Switch, requires_ovs, run
from windlass.switch import ovsdb
from windlass.switch.operations import insert, link, new_ref, put_keys, ref, update
from windlass.switch.ovsdb import Frames, SwitchRefusedError, open_database
from windlass.switch.rows import BridgeRow, OpenVSwitchRow
from windlass.switch.streams import SwitchUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# ---- the view


@requires_ovs
async def test_the_view_after_updates_equals_a_new_view(switch: Switch):
    await switch.add_nics("a", "b")
    async with open_database(str(switch.database)) as db:
        for command in [
            "add-br br0 -- set Bridge br0 datapath_type=netdev other_config:x=1 other_config:y=2",
            "add-port br0 a -- set Interface a external_ids:k=v external_ids:gone=soon",
            "add-port br0 b -- set Bridge br0 protocols=OpenFlow13,OpenFlow15 fail_mode=secure",
            "set Interface a external_ids:k=w -- remove Interface a external_ids gone",
            "set Bridge br0 other_config:x=3 protocols=OpenFlow14,OpenFlow15 -- clear Bridge br0 fail_mode",
            "del-port a -- add-port br0 a -- set Interface a external_ids:new=row",  # the same name, a new row
            "del-port b",
            "add-bond br0 bond0 b b-far",
        ]:
            await switch.vsctl(*command.split())
            async with open_database(str(switch.database)) as fresh:
                await db.wait_for(lambda view, fresh=fresh: view == fresh.view)
        assert db.view.interfaces["a"].external_ids == {"new": "row"}
        assert db.view.bridges["br0"].other_config == {"x": "3", "y": "2"}


READ_WITH_OVS_LIBRARY = """
import json, sys
import ovs.db.idl, ovs.poller
schema = ovs.db.idl.SchemaHelper("/usr/share/openvswitch/vswitch.ovsschema")
schema.register_columns("Interface", ["name", "type", "ofport", "error", "options", "external_ids"])
idl = ovs.db.idl.Idl("unix:" + sys.argv[1], schema)
while not idl.has_ever_connected():
    idl.run()
    if not idl.has_ever_connected():
        poller = ovs.poller.Poller(); idl.wait(poller); poller.block()
rows = idl.tables["Interface"].rows.values()
print(json.dumps({r.name: {c: getattr(r, c) for c in r._table.columns} | {"uuid": str(r.uuid)} for r in rows}))
idl.close()
"""


@requires_ovs
@not_on_windows("the library ovs of this version has no wheel, and Windows' Python has only wheels here")
async def test_the_ovs_library_reads_the_same_rows(switch: Switch):
    await switch.add_nics("a")
    commands = "add-br br0 -- set Bridge br0 datapath_type=netdev -- add-port br0 a -- set Interface a external_ids:k=v"
    await switch.vsctl(*commands.split())
    await switch.vsctl("add-port", "br0", "t", "--", "set", "Interface", "t", "type=geneve", "options:remote_ip=flow")
    # In a separate process, because the library blocks.
    expected = json.loads(await run(sys.executable, "-c", READ_WITH_OVS_LIBRARY, str(switch.database)))
    async with open_database(str(switch.database)) as db:
        ours = {name: msgspec.structs.asdict(row) for name, row in db.view.interfaces.items()}
        for row in expected.values():
            for column in ("ofport", "error"):
                row[column] = row[column][0] if row[column] else None
        assert {name: {column: ours[name][column] for column in row} for name, row in expected.items()} == expected


# ---- changes


def new_bridge(name: str):
    return [
        insert(BridgeRow, "bridge", {"name": name, "datapath_type": "netdev"}),
        insert(OpenVSwitchRow, "root", {}),
        link(OpenVSwitchRow, new_ref("root"), "bridges", new_ref("bridge")),
    ]


@requires_ovs
async def test_a_transaction_is_in_the_view_at_once_and_in_the_switch_after_carried_out(switch: Switch):
    async with open_database(str(switch.database)) as db:
        number = await db.change(lambda _: new_bridge("br0"))
        assert "br0" in db.view.bridges
        await db.carried_out(number)
        assert switch.management("br0").exists()
        assert number == db.view.done == 1


@requires_ovs
async def test_no_operations_are_no_transaction(switch: Switch):
    async with open_database(str(switch.database)) as db:
        await db.carried_out(await db.change(lambda _: new_bridge("br0")))
        before = db.view
        assert await db.change(lambda _: []) == 0
        await db.carried_out(0)
        assert db.view is before


@requires_ovs
async def test_a_refused_transaction_is_an_error_and_changes_nothing(switch: Switch):
    async with open_database(str(switch.database)) as db:
        await db.change(lambda _: new_bridge("br0"))
        bridge = db.view.bridges["br0"]
        with pytest.raises(SwitchRefusedError, match=r"db\.sock: the database refused.*nothing was changed.*identical"):
            await db.transact(
                [
                    put_keys(bridge, "other_config", {"half": "done"}),
                    insert(BridgeRow, "bridge", {"name": "br0"}),
                    link(OpenVSwitchRow, ref(db.view.root.uuid), "bridges", new_ref("bridge")),
                ]
            )
        with pytest.raises(SwitchRefusedError, match=r"refused.*: update in Bridge: constraint violation.*sometimes"):
            await db.transact([update(bridge, {"fail_mode": "sometimes"})])
        assert db.view.bridges["br0"] == bridge


@requires_ovs
async def test_concurrent_changes_are_serialized(switch: Switch):
    def count(view):
        bridge = view.bridges["br0"]
        return [put_keys(bridge, "other_config", {"count": str(int(bridge.other_config.get("count", "0")) + 1)})]

    async with open_database(str(switch.database)) as db:
        await db.change(lambda _: new_bridge("br0"))
        await asyncio.gather(*(db.change(count) for _ in range(50)))
        assert (await switch.vsctl("get", "Bridge", "br0", "other_config:count")).strip() == '"50"'


@requires_ovs
async def test_a_change_that_is_not_carried_out_in_time_is_an_error(switch: Switch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ovsdb, "PATIENCE", 0.05)
    await switch.stop_vswitchd()
    async with open_database(str(switch.database)) as db:
        number = await db.change(lambda _: new_bridge("br0"))
        with pytest.raises(SwitchUnreachableError, match=r"ovs-vswitchd has not carried out .* is it running\?"):
            await db.carried_out(number)


# ---- the connection


async def test_a_missing_socket_is_an_error_with_a_hint(tmp_path: Path):
    path = str(tmp_path / "db.sock")
    with pytest.raises(
        SwitchUnreachableError, match=f"^{re.escape(path)}: no such socket; start Open vSwitch .*ovsRunDirectory"
    ):
        async with open_database(path):
            pass


@not_on_windows("a named pipe ends with its daemon")
async def test_a_socket_without_a_daemon_is_an_error_with_a_hint(tmp_path: Path):
    path = str(tmp_path / "db.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    with pytest.raises(SwitchUnreachableError, match=f"^{path}: the socket exists but no daemon listens"):
        async with open_database(path):
            pass


@not_on_windows("the name of a pipe may be that long")
async def test_a_path_too_long_for_a_socket_is_an_error(tmp_path: Path):
    path = str(tmp_path / ("x" * 120))
    with pytest.raises(SwitchUnreachableError, match="path too long"):
        async with open_database(path):
            pass


@requires_ovs
async def test_opening_waits_for_a_server_that_starts_late(switch: Switch):
    await switch.stop_database()

    async def connect() -> int:
        async with open_database(str(switch.database), patience=30) as db:
            return db.view.connections

    connecting = asyncio.create_task(connect())
    await switch.start_database()
    assert await connecting == 1


@requires_ovs
async def test_after_a_restart_of_the_server_the_view_has_the_changes_made_meanwhile(switch: Switch):
    async with open_database(str(switch.database)) as db:
        await db.carried_out(await db.change(lambda _: new_bridge("br0")))
        changes = db.changes(since=db.view)

        await switch.stop_database()
        before, after = await anext(changes)
        while not after.problem:
            before, after = await anext(changes)
        assert str(switch.database) in after.problem
        assert after.bridges == before.bridges  # the last known view
        with pytest.raises(SwitchUnreachableError, match="nothing was changed"):
            await db.change(lambda _: new_bridge("br1"))

        elsewhere = {"op": "update", "table": "Bridge", "where": [], "row": {"other_config": ["map", [["by", "us"]]]}}
        await run("ovsdb-tool", "transact", str(switch.rundir / "conf.db"), json.dumps(["Open_vSwitch", elsewhere]))
        await switch.start_database()
        while after.problem:
            before, after = await anext(changes)
        assert after.connections == 2
        assert after.bridges["br0"].other_config == {"by": "us"}
        await changes.aclose()

        bridge = after.bridges["br0"]
        await db.carried_out(await db.change(lambda _: [update(bridge, {"fail_mode": "secure"})]))
        assert (await switch.vsctl("get-fail-mode", "br0")).strip() == "secure"


@requires_ovs
async def test_a_closed_database_leaves_no_session_and_no_task(switch: Switch):
    tasks = asyncio.all_tasks()
    async with open_database(str(switch.database)):
        assert "sessions:2" in await switch.appctl("ovsdb-server", "memory/show")  # ours and ovs-vswitchd's
    assert asyncio.all_tasks() == tasks
    assert "sessions:1" in await switch.appctl("ovsdb-server", "memory/show")


# ---- servers that misbehave


@asynccontextmanager
async def server(path: Path, *answers: bytes) -> AsyncIterator[asyncio.Queue[dict]]:
    """Answers the requests of each connection in turn with these bytes. Yields the requests that it received."""
    received: asyncio.Queue[dict] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        left = list(answers)
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                for frame in frames.cut(data):
                    received.put_nowait(json.loads(frame))
                    if left:
                        writer.write(left.pop(0))
                        if left == [b""]:
                            return writer.close()
        writer.close()
        return None

    async with serving_streams(path, serve):
        yield received


EMPTY = b'{"id": "monitor", "result": {}, "error": null}'


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"hello", "does not speak OVSDB .*not the start of a JSON object: b'hello'"),
        (b"[1, 2]{}", "does not speak OVSDB"),
        (b'{"id": monitor}', "does not speak OVSDB .*malformed"),
        (b'{"id": "monitor", "result": [], "error": null}', "does not speak OVSDB .*Expected `object`, got `array`"),
        (b'{"id": "monitor", "result": {"Bridge": {"u": {"initial": {"name": 5}}}}}', "Expected `str`, got `int`"),
        (b'{"id": "monitor", "result": {"Bridge": {"u": {"initial": {}}}}}', "missing required field `name`"),
        (b'{"id": "monitor", "result": {"Bridge": {"u": {"modify": {}}}}}', "which was never sent"),
        (
            b'{"id": "monitor", "result": {"Bridge": {"u": {"initial": {"name":"b","other_config":["map",[1]]}}}}}',
            "OVSDB",
        ),
        (b'{"id": "monitor", "result": {"\xff": {}}}', "does not speak OVSDB"),
        (b'{"id": "monitor", "result": null, "error": "unknown database"}', "lacks tables .*: unknown database"),
        (EMPTY[:20], "closed the connection"),
    ],
)
async def test_a_peer_that_does_not_speak_ovsdb_is_an_error(tmp_path: Path, answer: bytes, message: str):
    async with server(tmp_path / "db.sock", answer, b""):
        with pytest.raises(SwitchUnreachableError, match=f"db.sock: .*{message}"):
            async with open_database(str(tmp_path / "db.sock")):
                pass


async def test_a_silent_server_gets_an_echo_request_and_is_then_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ovsdb, "PROBE_INTERVAL", 0.02)
    async with server(tmp_path / "db.sock") as received:
        with pytest.raises(SwitchUnreachableError, match=r"db.sock: ovsdb-server has not answered for"):
            async with open_database(str(tmp_path / "db.sock")):
                pass
    assert [(await received.get())["method"] for _ in range(2)] == ["monitor_cond", "echo"]


async def test_the_servers_own_echo_is_answered(tmp_path: Path):
    async with server(tmp_path / "db.sock", EMPTY + b'{"method": "echo", "params": ["x"], "id": "echo"}') as received:
        async with open_database(str(tmp_path / "db.sock")):
            pass
        assert (await received.get())["method"] == "monitor_cond"
        assert await received.get() == {"id": "echo", "result": ["x"], "error": None}


async def test_a_malformed_update_ends_the_connection_and_keeps_the_view(tmp_path: Path):
    good = b'{"id": "monitor", "result": {"Bridge": {"u": {"initial": {"name": "br0"}}}}}'
    bad = b'{"method": "update2", "params": [null, {"Bridge": {"u": {"modify": {"ports": 5}}}}]}'
    async with server(tmp_path / "db.sock", good + bad), open_database(str(tmp_path / "db.sock")) as db:
        problem = await db.wait_for(lambda view: view.problem)
        assert "does not speak OVSDB" in problem
        assert list(db.view.bridges) == ["br0"]
        await db.wait_for(lambda view: view.connections > 1)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b'{"id": 1, "result": {"not": "a list"}, "error": null}', SwitchRefusedError, "malformed reply"),
        (b'{"id": 1, "result": [], "error": null}', SwitchRefusedError, "malformed reply"),
        (b'{"id": 1, "result": null, "error": "no more"}', SwitchRefusedError, "no more"),
        (
            b'{"id": 99, "result": [], "error": null}' + b"}",
            SwitchUnreachableError,
            "whether the last change was committed",
        ),
        (b'{"id": 1, "resu', SwitchUnreachableError, "closed the connection.*whether the last change was committed"),
    ],
)
async def test_a_transaction_always_ends(tmp_path: Path, answer: bytes, error: type[Exception], message: str):
    async with server(tmp_path / "db.sock", EMPTY, answer, b""), open_database(str(tmp_path / "db.sock")) as db:
        with pytest.raises(error, match=f"db.sock: .*{message}"):
            await db.change(lambda _: new_bridge("br0"))


@pytest.mark.parametrize("results", [b"[]", b"[{}]", b'[{}, {}, {}, {}, {"rows": []}]'])
async def test_a_reply_with_too_few_results_is_an_error(tmp_path: Path, results: bytes):
    answer = b'{"id": 1, "result": %s, "error": null}' % results
    async with server(tmp_path / "db.sock", EMPTY, answer), open_database(str(tmp_path / "db.sock")) as db:
        with pytest.raises(SwitchRefusedError, match="malformed reply"):
            await db.change(lambda _: new_bridge("br0"))


# ---- frames

json_objects = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(alphabet='{}"\\ aé\n'),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=50)  # a busy machine must not fail it
@given(
    st.lists(json_objects, max_size=5),
    st.sampled_from(["", " ", "\n\n"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_frames_are_found_however_the_stream_is_split(objects, space, chunk, ascii_only):
    stream = space.join(json.dumps(item, ensure_ascii=ascii_only) for item in objects).encode()
    frames = Frames()
    cut = [frame for at in range(0, len(stream), chunk) for frame in frames.cut(stream[at : at + chunk])]
    assert [json.loads(frame) for frame in cut] == objects
