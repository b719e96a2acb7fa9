"""Pods' ports on a real switch, and what an agent reads about them after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bridge_ports import SPEC, pod
from platforms import not_on_windows
from switches import Switch, requires_ovs, run
from windlass.model.nodes import AttachedPod
from windlass.switch import ovsdb
from windlass.switch.bridges import add_uplink, ensure_bridge
from windlass.switch.operations import Insert
from windlass.switch.ovsdb import SwitchRefusedError, open_database
from windlass.switch.pod_ports import (
    POD_NUMBERS,
    PodPort,
    add_pod_port,
    attached_pods,
    declare_pod_port,
    delete_pod_port,
    pod_port_difference,
)
from windlass.switch.rows import BridgeRow, InterfaceRow, PortRow, View
from windlass.switch.streams import SwitchUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from windlass.switch.ovsdb import Database


def attached(port: PodPort, ofport: int) -> AttachedPod:
    return AttachedPod(port.namespace, port.name, port.container_id, port.interface, ofport, port.mac, port.addresses)


@pytest.fixture
async def db(switch: Switch) -> AsyncIterator[Database]:
    async with open_database(str(switch.database)) as database:
        await ensure_bridge(database, SPEC)
        yield database


async def numbers(switch: Switch) -> dict[str, int]:
    """The Pods' ports as the switch reports them over OpenFlow."""
    shown = await switch.ofctl("show", str(switch.management("br-int")))
    lines = [line.strip() for line in shown.splitlines() if "): addr:" in line]
    ports = dict(line.split("):")[0].split("(")[::-1] for line in lines)
    return {name: int(number) for name, number in ports.items() if name.startswith("pod")}


@requires_ovs
async def test_a_pod_is_attached_read_after_a_restart_and_detached(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    number = await add_pod_port(db, "br-int", pod(1))
    assert await numbers(switch) == {"pod1": number}
    assert (
        await switch.vsctl("get", "Interface", "pod1", "external_ids:windlass-ips")
    ).strip() == '"10.10.0.1,fd00:10::1"'
    async with open_database(str(switch.database)) as next_agent:
        assert attached_pods(next_agent.view, "br-int").pods == (attached(pod(1), number),)
        assert attached_pods(next_agent.view, "br-int").problems == ()
        await delete_pod_port(next_agent, "br-int", "pod1")
        assert attached_pods(next_agent.view, "br-int").pods == ()
    await delete_pod_port(db, "br-int", "pod1")
    assert "pod1" not in await switch.vsctl("list-ports", "br-int")


@requires_ovs
async def test_attaching_again_takes_no_transaction(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    number = await add_pod_port(db, "br-int", pod(1))
    size = (switch.rundir / "conf.db").stat().st_size
    assert await add_pod_port(db, "br-int", pod(1)) == number
    assert (switch.rundir / "conf.db").stat().st_size == size


@requires_ovs
async def test_fifty_pods_are_attached_and_detached_at_once(switch: Switch, db: Database):
    pods = [pod(number) for number in range(1, 51)]
    await switch.add_nics(*(port.interface for port in pods))
    given = await asyncio.gather(*(add_pod_port(db, "br-int", port) for port in pods))
    assert len(set(given)) == 50
    by_name = {port.interface: number for port, number in zip(pods, given, strict=True)}
    assert await numbers(switch) == by_name
    read = attached_pods(db.view, "br-int")
    assert set(read.pods) == {attached(port, by_name[port.interface]) for port in pods}
    await asyncio.gather(*(delete_pod_port(db, "br-int", port.interface) for port in pods))
    assert attached_pods(db.view, "br-int").pods == ()
    await switch.vsctl(
        "set", "bridge", "br-int", "external_ids:last=change"
    )  # returns when the changes before it are carried out, too
    assert await numbers(switch) == {}


@requires_ovs
async def test_no_pod_gets_the_number_of_a_port_that_is_added_later(switch: Switch, db: Database):
    await switch.add_nics("pod1", "pod2", "eth0")
    first = await asyncio.gather(*(add_pod_port(db, "br-int", pod(number)) for number in (1, 2)))
    assert all(number in POD_NUMBERS for number in first)
    assert await add_uplink(db, SPEC) == 3
    assert list((await numbers(switch)).values()) == first


@requires_ovs
async def test_numbers_survive_a_restart_of_the_switch(switch: Switch, db: Database):
    await switch.add_nics("pod1", "pod2")
    given = {f"pod{number}": await add_pod_port(db, "br-int", pod(number)) for number in (2, 1)}
    await switch.stop_vswitchd()
    await switch.start_vswitchd()
    assert await numbers(switch) == given


@requires_ovs
async def test_a_number_that_another_client_changes_is_noticed(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    number = await add_pod_port(db, "br-int", pod(1))
    changes = db.changes(since=db.view)
    await switch.vsctl("set", "Interface", "pod1", "ofport_request=4711")
    async for before, after in changes:
        if attached_pods(after, "br-int").pods == (attached(pod(1), 4711),):
            assert attached_pods(before, "br-int").pods == (attached(pod(1), number),)
            break
    await changes.aclose()


@requires_ovs
@not_on_windows("in a dummy datapath, any name is an interface")
async def test_a_missing_interface_is_an_error_and_leaves_no_port(switch: Switch, db: Database):
    with pytest.raises(SwitchRefusedError, match=r"^br-int: port pod1: .*No such device.*its interface must exist"):
        await add_pod_port(db, "br-int", pod(1))
    assert "pod1" not in await switch.vsctl("list-ports", "br-int")
    await switch.add_nics("pod1")
    assert await add_pod_port(db, "br-int", pod(1)) == (await numbers(switch))["pod1"]


@requires_ovs
@not_on_windows("in a dummy datapath, any name is an interface")
async def test_a_port_may_be_declared_before_its_interface_exists(switch: Switch, db: Database):
    """As on Windows, where the vNIC appears after ADD has returned."""
    await declare_pod_port(db, "br-int", pod(1))
    await db.wait_for(lambda view: view.interfaces["pod1"].ofport == -1)
    (problem,) = attached_pods(db.view, "br-int").problems
    assert "Pod default/web-1 has no port number: could not open network device pod1" in problem
    await switch.add_nics("pod1")
    pods = await db.wait_for(lambda view: attached_pods(view, "br-int").pods)
    assert [port.interface for port in pods] == ["pod1"]


@requires_ovs
async def test_a_stopped_switch_is_an_error_and_leaves_no_port(
    switch: Switch, db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ovsdb, "PATIENCE", 0.05)
    await switch.stop_vswitchd()
    with pytest.raises(SwitchUnreachableError, match=r"ovs-vswitchd has not created port pod1 within .* is it running"):
        await add_pod_port(db, "br-int", pod(1))
    assert "pod1" not in db.view.interfaces


@requires_ovs
async def test_a_new_container_takes_over_the_port_name_of_a_former_one(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    former = await add_pod_port(db, "br-int", pod(1))
    another = replace(pod(1), container_id="another", name="api-0")
    number = await add_pod_port(db, "br-int", another)
    assert number != former
    assert attached_pods(db.view, "br-int").pods == (attached(another, number),)
    assert await numbers(switch) == {"pod1": number}


@requires_ovs
async def test_foreign_ports_are_neither_taken_nor_deleted_nor_listed(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    await switch.vsctl("add-port", "br-int", "pod1")
    await db.wait_for(lambda view: "pod1" in view.interfaces)
    with pytest.raises(SwitchRefusedError, match=r"^br-int: port pod1 exists already, and is not a Pod's"):
        await add_pod_port(db, "br-int", pod(1))
    await delete_pod_port(db, "br-int", "pod1")
    await delete_pod_port(db, "br-int", SPEC.gateway)
    assert (await switch.vsctl("list-ports", "br-int")).split() == ["pod1", SPEC.gateway]
    assert attached_pods(db.view, "br-int").pods == ()


@requires_ovs
async def test_a_deleted_bridge_is_an_error(switch: Switch, db: Database):
    await switch.add_nics("pod1")
    await switch.vsctl("del-br", "br-int")
    await db.wait_for(lambda view: "br-int" not in view.bridges)
    with pytest.raises(SwitchRefusedError, match=r"^br-int: there is no such bridge"):
        await add_pod_port(db, "br-int", pod(1))
    await delete_pod_port(db, "br-int", "pod1")


@requires_ovs
async def test_a_port_is_not_added_to_a_bridge_that_is_deleted_meanwhile(switch: Switch, db: Database):
    """The view may be out of date; the transaction itself checks that the bridge exists."""
    seen = pod_port_difference(db.view, "br-int", pod(1))
    await run("ovs-vsctl", f"--db=unix:{switch.database}", "del-br", "br-int")
    with pytest.raises(SwitchRefusedError, match="nothing was changed: wait in Bridge"):
        await db.transact(seen)


# ---- contents of the database that another program may have written


def view_of(**external_ids_of: dict[str, str]) -> View:
    names = list(external_ids_of)
    return View(
        connections=1,
        bridges={"br-int": BridgeRow(uuid="b", name="br-int", ports=frozenset(f"port-{name}" for name in names))},
        ports={name: PortRow(uuid=f"port-{name}", name=name) for name in names},
        interfaces={
            name: InterfaceRow(
                uuid=f"interface-{name}", name=name, ofport=16 + number, external_ids=external_ids_of[name]
            )
            for number, name in enumerate(names)
        },
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"windlass-ips": "10.0.0.256"}, "windlass-ips: '10.0.0.256' does not appear to be an IPv4 or IPv6 address"),
        ({"windlass-ips": ""}, "external_ids lack windlass-ips"),
        ({"windlass-pod-name": "", "windlass-mac": ""}, "external_ids lack windlass-pod-name, windlass-mac"),
        ({"windlass-mac": "0a-58-0a-0a-00-01"}, "windlass-mac: '0a-58-0a-0a-00-01' is not a MAC address"),
        ({"windlass-container-id": "container-2"}, "container container-2 has port pod2"),
    ],
)
def test_an_invalid_port_is_a_problem_and_the_others_are_read(broken: dict[str, str], message: str):
    view = view_of(pod2=pod(2).external_ids, pod3={**pod(1).external_ids, **broken}, theirs={"k": "v"})
    read = attached_pods(view, "br-int")
    assert [port.interface for port in read.pods] == ["pod2"]
    (problem,) = read.problems
    assert problem.startswith("br-int: port pod3 is left alone: ")
    assert message in problem


def test_numbers_are_unique_and_not_reused_soon():
    def requested(view: View) -> object:
        (row,) = (
            op.row
            for op in pod_port_difference(view, "br-int", pod(1))
            if isinstance(op, Insert) and op.table == "Interface"
        )
        return row["ofport_request"]

    def with_numbers(*taken: int) -> View:
        view = view_of(**{f"p{number}": {} for number in taken})
        return replace(view, interfaces={f"p{n}": InterfaceRow(uuid=f"i{n}", name=f"p{n}", ofport=n) for n in taken})

    first, last = POD_NUMBERS[0], POD_NUMBERS[-1]
    assert requested(with_numbers()) == first
    assert requested(with_numbers(1, 2, 3)) == first
    assert requested(with_numbers(2, first, 300)) == 301
    assert requested(with_numbers(first, first + 1, last)) == first + 2
