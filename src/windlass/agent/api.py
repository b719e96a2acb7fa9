"""The local HTTP API on a unix socket: state, flows with their reasons, convergence, health, metrics. It only reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from windlass.agent.status import Status
from windlass.model.nodes import NodeState
from windlass.openflow.flows import Flow
from windlass.openflow.ofctl import flow_text
from windlass.openflow.wire.flows import encode
from windlass.pipeline.symbols import flow_symbols
from windlass.program import Owner

_STEP = 20  # flows to tell of before others of this process have a turn: there may be a hundred thousand


class Subject(Protocol):
    """What the API tells about."""

    status: Status
    registry: CollectorRegistry

    @property
    def state(self) -> NodeState | None: ...
    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]: ...
    def flows(self) -> Iterable[tuple[Owner, Flow]]: ...


class FlowReport(Struct):
    cookie: str
    owner: str
    why: str
    symbolic: str
    ofctl: str


@asynccontextmanager
async def serving(socket: Path, subject: Subject) -> AsyncIterator[None]:
    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", lambda _: health(subject)),
            web.get("/v1/state", lambda _: state(subject)),
            web.get("/v1/flows", lambda request: flows(subject, request)),
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
            "problems": subject.problems,
            **({} if subject.state is None else _described(subject.state)),
        }
    )


async def flows(subject: Subject, request: web.Request) -> web.Response:
    """All flows, or with `?cookie=0x...` the one of that cookie: which object asked for it, and why."""
    wanted = request.query.get("cookie")
    try:
        cookie = None if wanted is None else int(wanted, 16)
    except ValueError:
        return _json({"error": f"cookie: {wanted!r} is not a hexadecimal number such as 0x1f"}, status=400)
    reports: list[FlowReport] = []
    for number, (owner, flow) in enumerate(subject.flows(), start=1):
        encoded = encode(flow)
        if cookie in {None, encoded.cookie}:
            reports.append(
                FlowReport(f"{encoded.cookie:#018x}", str(owner), flow.why, flow_symbols(flow), flow_text(flow))
            )
        if not number % _STEP:
            await asyncio.sleep(0)
    return _json({"flows": reports})


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
    return web.Response(body=generate_latest(subject.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


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
    }


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body, enc_hook=str, order="deterministic"),
        status=status,
        content_type="application/json",
    )
