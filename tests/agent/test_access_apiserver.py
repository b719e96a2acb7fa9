"""What the agent reports if a real kube-apiserver refuses its requests, cannot be trusted or is unavailable."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from apiserver_agents import EVENTS, NODE, PATIENCE, running_agent, until

from control_planes import ADDRESS, needs
from windlass.cluster.kubernetes.connections import RequestRefused, Unreachable
from windlass.cluster.kubernetes.credentials import Access, Reader
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.kubernetes.writing import NOT_READY, UPLINK_MAC
from windlass.lab.control import certificates
from windlass.lab.control.certificates import Certificate
from windlass.lab.control.control_planes import AGENT, ControlPlane

pytestmark = needs("etcd", "kube-apiserver")


@pytest.mark.usefixtures("short_delays")
async def test_forbidden_writes(api):
    await api.allow([rule for rule in rules() if rule["verbs"] == ["list", "watch"]])
    await api.put_node()
    await api.put_service("web", externalIPs=["172.16.1.77"])
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        reported = await one.reports(
            "annotations and taint of this Node cannot be written: https://10.99.0.1:6443 forbids it (403)",
            'User "windlass" cannot patch resource "nodes"',
            "Events cannot be written: https://10.99.0.1:6443 forbids it (403)",
            'User "windlass" cannot create resource "events"',
            area="cluster writes",
        )
        assert "the ClusterRole of Windlass must allow it" in reported
        assert one.agent.status.ready
        await api.allow(rules())
        await until(lambda: api.events("Service", "web"))
        await until(api.annotations, accept=lambda found: UPLINK_MAC in found)
        assert await one.agent.status.wait_until(lambda: "cluster writes" not in one.agent.view.problems, PATIENCE)


async def test_more_than_the_role_allows(api):
    await api.put_node()
    async with api.plane.connection(AGENT) as connection:
        for method, path in (
            ("GET", NODE),
            ("DELETE", NODE),
            ("PATCH", f"{NODE}/status"),
            ("DELETE", EVENTS),
            ("GET", EVENTS),
            ("POST", "/api/v1/namespaces/default/events"),
            ("GET", "/api/v1/secrets"),
        ):
            with pytest.raises(RequestRefused, match=r"forbids it \(403\)"):
                await connection.request(method, path, body=b"{}", content_type="application/merge-patch+json")


def _with(plane: ControlPlane, **changes: str) -> Reader:
    access = msgspec.structs.replace(plane.access(AGENT), **changes)
    return lambda: access


async def test_an_unreachable_server_or_another_kind_of_server(api):
    await api.put_node()
    for server, sentence in (
        ("https://10.99.0.1:6444", "Connection refused; does the API server run there?"),
        ("https://127.0.0.1:2379", "Connection reset by peer; does the API server run there?"),  # etcd
        ("http://127.0.0.1:2379", "Not Found (404)"),
    ):
        async with running_agent(api.plane, _with(api.plane, server=server)) as one:
            await one.reports(server, sentence, "waiting for it", area="cluster source")
            assert server in one.agent.status.waiting_for


async def test_a_refused_token(api):
    await api.put_node()
    held = {"token": "stolen"}

    def access() -> Access:
        return msgspec.structs.replace(api.plane.access(AGENT), **held)

    async with running_agent(api.plane, access) as one:
        await one.reports("does not accept the token of user windlass", "(401); is it expired", area="cluster source")
        assert "(401)" in one.agent.status.waiting_for
        held["token"] = AGENT  # it is replaced on disk
        await one.becomes_ready()
        await one.has_no_problems()
        await until(api.annotations, accept=lambda found: UPLINK_MAC in found)


async def test_an_expired_client_certificate(api, tmp_path):
    await api.put_node()
    authority = Certificate(api.plane.folder / "ca.crt", api.plane.folder / "ca.key")
    made = await asyncio.to_thread(
        lambda: certificates.issue(authority, tmp_path, "agent", subject=f"/CN={AGENT}", days=-1)
    )
    certificate, key = (file.read_text() for file in made)
    access = _with(api.plane, token="", certificate=certificate, key=key, identity="the client certificate of x")
    async with running_agent(api.plane, access) as one:
        await one.reports("does not accept the client certificate of x (401)", "is it expired", area="cluster source")


async def test_a_server_with_an_expired_certificate(api):
    await api.put_node()
    folder = api.plane.folder
    kept = {file: file.read_bytes() for file in (folder / "server.crt", folder / "server.key")}
    authority = Certificate(folder / "ca.crt", folder / "ca.key")
    try:
        await asyncio.to_thread(
            lambda: certificates.issue(authority, folder, "server", alternatives=[f"IP:{ADDRESS}"], days=-1)
        )
        await until(lambda: _answer(api.plane), accept=lambda answer: "certificate has expired" in str(answer))
        async with running_agent(api.plane) as one:
            await one.reports(
                "https://10.99.0.1:6443: its certificate is not accepted: certificate has expired",
                "renew it, or correct the clock of this machine",
                area="cluster source",
            )
            for file, content in kept.items():
                file.write_bytes(content)
            await one.becomes_ready()
            await one.has_no_problems()
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
        await until(lambda: _answer(api.plane), accept=lambda answer: answer == "ok")


async def _answer(plane: ControlPlane) -> str:
    try:
        async with plane.connection() as connection:
            return (await connection.request("GET", "/readyz")).decode()
    except Unreachable as error:
        return str(error)


async def test_a_server_that_stops_and_returns(api):
    """Nothing changes on the Node; pending writes are made when the server is back."""
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await until(api.annotations, accept=lambda found: UPLINK_MAC in found)
        await api.plane.stop_server()
        await one.reports("does the API server run there?", "read before stays in use", area="cluster source")
        assert one.agent.status.ready
        await api.plane.start_server()
        await one.has_no_problems()
        assert NOT_READY not in await api.taints()
