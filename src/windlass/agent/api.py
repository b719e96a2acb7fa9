"""The local HTTP API on a unix socket: state, flows with their reasons, convergence, health, metrics. It only reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from windlass.agent import listings
from windlass.agent.areas import Area
from windlass.agent.expositions import Exposition
from windlass.agent.status import Status
from windlass.model.nodes import NodeState
from windlass.program import Program


class Subject(Protocol):
    """What the API tells about."""

    status: Status
    exposition: Exposition

    @property
    def state(self) -> NodeState | None: ...
    @property
    def problems(self) -> Mapping[Area, tuple[str, ...]]: ...
    @property
    def program(self) -> Program: ...
    @property
    def flow_count(self) -> int: ...


@asynccontextmanager
async def serving(socket: Path, subject: Subject) -> AsyncIterator[None]:
    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", lambda _: health(subject)),
            web.get("/v1/state", lambda _: state(subject)),
            web.get("/v1/flows", lambda request: listing(subject, request, "flows")),
            web.get("/v1/groups", lambda request: listing(subject, request, "groups")),
            web.get("/v1/convergence", lambda request: convergence(subject, request)),
            web.get("/metrics", lambda _: metrics(subject)),
        ]
    )
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    await _refuse_served(socket)
    with suppress(FileNotFoundError):
        socket.unlink()  # of an agent that was killed
    try:
        await web.UnixSite(runner, str(socket)).start()
        socket.chmod(0o600)
        yield
    finally:
        await runner.cleanup()
        with suppress(FileNotFoundError):
            socket.unlink()


async def _refuse_served(socket: Path) -> None:
    """Two agents on a Node would undo each other's work."""
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return  # nobody there
    writer.close()
    raise OSError(f"{socket}: another agent serves this Node; stop it, or give this one a runDirectory of its own")


async def health(subject: Subject) -> web.Response:
    status = subject.status
    body = {"ready": status.ready, "waitingFor": status.waiting_for, "problems": subject.problems}
    return _json(body, status=200 if status.ready else 503)


async def state(subject: Subject) -> web.Response:
    status = subject.status
    return _json(
        {
            "ready": status.ready,
            "waitingFor": status.waiting_for,
            "revision": status.revision,
            "generation": status.generation,
            "updated": status.updated,
            "behindSeconds": status.behind_seconds,
            "flowCount": subject.flow_count,
            "problems": subject.problems,
            "findings": status.findings,
            **({} if subject.state is None else _described(subject.state)),
        }
    )


async def listing(subject: Subject, request: web.Request, member: str) -> web.StreamResponse:
    """All flows or groups, or those of an `?owner=`, a `?table=`, a `?cookie=0x`: who asked for each, and why."""
    try:
        asked = listings.question(request)
    except listings.BadQuestion as error:
        return _json({"error": str(error)}, status=400)
    return await listings.answer(request, member, subject.program, subject.state, asked)


async def convergence(subject: Subject, request: web.Request) -> web.Response:
    """Waits until the Node holds the state of the cluster that `revision` names."""
    status = subject.status
    try:
        seconds = float(request.query.get("timeout", "0"))
    except ValueError:
        return _json({"error": "timeout: a number of seconds is needed"}, status=400)
    converged = await status.wait_for_revision(request.query.get("revision", status.revision), seconds)
    body = {
        "converged": converged,
        "revision": status.revision,
        "generation": status.generation,
        "waitingFor": status.waiting_for,
        "problems": subject.problems,
    }
    return _json(body, status=200 if converged else 408)


async def metrics(subject: Subject) -> web.Response:
    return web.Response(body=await subject.exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _described(state: NodeState) -> dict[str, object]:
    node = state.node
    return {
        "node": {
            "name": node.name,
            "os": node.os.value,
            "trafficMode": node.mode.value,
            "addresses": [str(address) for address in node.addresses.values()],
            "podCIDRs": [str(cidr) for cidr in node.pod_cidrs.values()],
            "gateways": [str(node.gateway(family)) for family in node.families],
        },
        "peers": {
            name: {
                "addresses": [str(address) for address in peer.addresses.values()],
                "podCIDRs": [str(cidr) for cidr in peer.pod_cidrs.values()],
            }
            for name, peer in state.peers.items()
        },
        "pods": {
            pod.key: {
                "containerID": pod.container_id,
                "interface": pod.interface,
                "ofport": pod.ofport,
                "addresses": [str(address) for address in pod.addresses],
            }
            for pod in state.pods.values()
        },
        "serviceCount": len(state.services),
    }


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body, enc_hook=str, order="deterministic"),
        status=status,
        content_type="application/json",
    )
