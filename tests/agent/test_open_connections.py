"""The marks of open UDP connections in a real switch, which an agent compares with policies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from fed_agents import PATIENCE, WEB, FedAgent, fed_agent, fed_node, node
from test_enforced_policies import CLIENT, peer, pod, policy

from stream_servers import serving_streams
from switches import requires_ovs
from windlass.agent import open_connections, switching
from windlass.openflow.conntrack_dumps import TrackedConnection, udp_connections
from windlass.openflow.fields import LOCAL_PORT
from windlass.pipeline.denied_connections import is_marked, marking
from windlass.pipeline.tracking import POD_ZONE
from windlass.program import Owner, OwnerKind, Program
from windlass.switch.controls import ask, control_socket
from windlass.switch.datagrams import empty_datagram

pytestmark = requires_ovs


DENIED, SERVICE, SNAT = 1 << 7, 1 << 5, 1 << 6
CLIENT_IP, WEB_IP = "172.16.2.9", "172.16.1.5"
TO_WEB = TrackedConnection(CLIENT_IP, 40000, WEB_IP, 53, WEB_IP, 53, CLIENT_IP, 40000, 0)


async def track(fed: FedAgent, one: TrackedConnection, *, denied: bool = False) -> None:
    datagram = empty_datagram(one.client, one.client_port, one.to, one.to_port)
    await fed.agent.view.switch.requests.packet_out(datagram, LOCAL_PORT, marking(one, denied=denied))


async def become(fed: FedAgent, expected: Callable[[list[TrackedConnection]], bool]) -> None:
    """Returns when the open connections are as expected."""
    found: list[TrackedConnection] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while not found or not expected(found):
                dump = await ask(control_socket(fed.switch.folder), "dpctl/dump-conntrack", f"zone={POD_ZONE}")
                found = list(udp_connections(dump))
    except TimeoutError:
        raise AssertionError(found) from None


@pytest.mark.parametrize(
    "one",
    [
        TO_WEB,
        TrackedConnection(WEB_IP, 40000, "10.96.0.10", 53, CLIENT_IP, 5353, WEB_IP, 40000, SERVICE),
        TrackedConnection(WEB_IP, 40000, "192.0.2.1", 53, "192.0.2.1", 53, "10.176.25.11", 61001, SNAT),
        TrackedConnection("fd00::2", 40000, "fd00:96::10", 53, "fd00::3", 5353, "fd00::2", 40000, SERVICE),
    ],
    ids=["to a Pod", "to a Service", "to the outside", "IPv6"],
)
async def test_an_entry_that_has_expired_before_it_is_marked_comes_back_as_it_was(one: TrackedConnection) -> None:
    async with fed_agent() as fed:
        await track(fed, one)
        await become(fed, [one].__eq__)
        await track(fed, one, denied=True)
        await become(fed, [msgspec.structs.replace(one, mark=one.mark | DENIED)].__eq__)


async def test_a_connection_that_is_denied_until_its_client_is_known_is_restored_then() -> None:
    async with fed_agent() as fed:
        await fed.attach(WEB)
        await track(fed, TO_WEB)
        await fed.holds(pod("web"), policy("a", ingress=[{"from": [CLIENT]}]))
        await become(fed, lambda found: all(map(is_marked, found)))
        await fed.holds(peer("one", CLIENT_IP, app="client"))
        await become(fed, lambda found: not any(map(is_marked, found)))


async def test_an_agent_that_starts_removes_the_marks_of_policies_that_are_gone() -> None:
    async with fed_node() as fed:
        async with fed.running():
            await fed.holds(node())
            await track(fed, TO_WEB, denied=True)
            await become(fed, lambda found: all(map(is_marked, found)))
        async with fed.running():
            await become(fed, lambda found: not any(map(is_marked, found)))


async def test_an_agent_that_starts_while_the_switch_does_not_answer_removes_such_marks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switching, "PATIENCE", 0.2)
    async with fed_node() as fed:
        async with fed.running():
            await fed.holds(node())
            await track(fed, TO_WEB, denied=True)
            await become(fed, lambda found: all(map(is_marked, found)))
        socket = Path(fed.switch.folder) / "br-int.mgmt"
        hidden = socket.rename(socket.with_name("hidden.mgmt"))
        async with fed.running():
            status, view = fed.agent.status, fed.agent.view
            assert await status.wait_until(lambda: "no such socket" in str(view.problems), PATIENCE), view.problems
            hidden.rename(socket)
            await become(fed, lambda found: not any(map(is_marked, found)))


@asynccontextmanager
async def denied_connection() -> AsyncIterator[FedAgent]:
    async with fed_agent() as fed:
        await fed.attach(WEB)
        await track(fed, TO_WEB)
        await fed.holds(pod("web"), policy("a", ingress=[]))
        await become(fed, lambda found: all(map(is_marked, found)))
        yield fed


async def is_taken(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        while event.is_set():  # noqa: ASYNC110 - no other event tells that this one was taken
            await asyncio.sleep(0)


async def test_a_pod_that_is_attached_meanwhile_does_not_prevent_that_connections_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_connections, "PAUSE", 0.0)
    async with denied_connection() as fed:
        switch, another = fed.agent._switch, Owner(OwnerKind.POD, "id-another")
        installed = switch._installed
        assert installed is not None
        apply = installed.apply

        async def applied(parts: Program) -> None:
            await apply(parts)
            switch.owed.add(another)

        monkeypatch.setattr(installed, "apply", applied)
        await fed.holds("NetworkPolicy default/a")
        await is_taken(switch.policies_sent)
        monkeypatch.undo()
        await switch.bring([another])
        await become(fed, lambda found: not any(map(is_marked, found)))


async def test_connections_are_not_compared_with_policies_that_the_switch_does_not_have_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_connections, "PAUSE", 0.0)
    async with denied_connection() as fed:
        switch = fed.agent._switch
        is_due, may_be_sent = fed.hold_back_flows(monkeypatch)
        revision = fed.source.put("NetworkPolicy default/a")
        await is_due.wait()
        switch.policies_sent.set()  # by an earlier change
        await is_taken(switch.policies_sent)
        await track(fed, TO_WEB, denied=True)  # as flows of the former policies do with a packet of the client
        may_be_sent.set()
        await fed.reaches(revision)
        await become(fed, lambda found: not any(map(is_marked, found)))


async def test_a_connection_is_not_marked_by_policies_that_have_changed_since_connections_were_listed() -> None:
    async with denied_connection() as fed:
        denying, agent = fed.agent.view.state, fed.agent
        assert denying is not None
        await fed.holds("NetworkPolicy default/a")
        await become(fed, lambda found: not any(map(is_marked, found)))
        await agent._open_connections._review(denying)
        await agent._switch.audit()  # the switch has processed all datagrams
        await become(fed, lambda found: not any(map(is_marked, found)))


async def test_other_tasks_run_while_connections_are_judged_and_the_agent_can_end():
    endless = ((TO_WEB, True) for _ in itertools.count())
    judging = asyncio.create_task(open_connections.relevant(endless))
    await asyncio.sleep(0)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging


@pytest.mark.parametrize(
    ("spent", "pause"), [(0.001, 1.0), (0.2, 4.0), (10.0, 20.0)], ids=["short", "many connections", "no answer"]
)
def test_reviews_take_a_small_share_of_the_time_and_are_never_delayed_for_long(spent: float, pause: float):
    assert open_connections.pause_after(spent) == pytest.approx(pause)


@asynccontextmanager
async def no_connections_listed(fed: FedAgent) -> AsyncIterator[None]:
    """A stand-in for the control socket of ovs-vswitchd that refuses to list connections, and obeys else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = msgspec.json.decode(await reader.readuntil(b"}"))
        refused = asked["method"] == "dpctl/dump-conntrack"
        writer.write(msgspec.json.encode({"error": "no such datapath"} if refused else {"result": ""}))
        await writer.drain()
        writer.close()

    socket = Path(fed.switch.folder) / "ovs-vswitchd.ctl"
    hidden = socket.with_name("hidden.ctl")
    socket.rename(hidden)
    try:
        async with serving_streams(socket, answer):
            yield
    finally:
        socket.unlink(missing_ok=True)
        hidden.rename(socket)


async def test_connections_that_cannot_be_compared_with_policies_are_reported_and_tried_again() -> None:
    async with fed_agent() as fed:
        await fed.holds(pod("web"))
        status, view = fed.agent.status, fed.agent.view
        async with no_connections_listed(fed):
            await fed.holds(policy("a", ingress=[{"from": [CLIENT]}]))
            assert await status.wait_until(lambda: "no such datapath" in str(view.problems), PATIENCE), view.problems
            assert "clients that send nothing" in str(view.problems)
        assert await status.wait_until(lambda: not view.problems, PATIENCE), view.problems
