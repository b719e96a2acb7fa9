"""The local HTTP API: state, flows with their reasons, convergence, health, metrics, logs.

It changes nothing but the level of the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from windlass.agent import listings, policy_counters
from windlass.agent.expositions import Exposition
from windlass.agent.logs import Logs
from windlass.agent.views import AgentView
from windlass.channels import local
from windlass.cluster.clusters import Cluster
from windlass.model.nodes import NodeState
from windlass.nodes.config import LogLevel
from windlass.pipeline.datapaths import datapath_of, violations

LONGEST_LEVEL = 7 * 86400.0  # seconds: the maximum time for a temporary log level


@asynccontextmanager
async def serving(socket: Path, view: AgentView, exposition: Exposition, logs: Logs) -> AsyncIterator[None]:
    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", lambda _: health(view)),
            web.get("/v1/state", lambda _: state(view)),
            web.get("/v1/policy-objects", lambda _: policy_objects(view)),
            web.get("/v1/policy-counters", lambda request: policy_counts(view, request)),
            web.get("/v1/flows", lambda request: listing(view, request, "flows")),
            web.get("/v1/groups", lambda request: listing(view, request, "groups")),
            web.get("/v1/unsupported", lambda _: unsupported(view)),
            web.get("/v1/convergence", lambda request: convergence(view, request)),
            web.get("/v1/logs", lambda _: recent_logs(logs)),
            web.get("/v1/log-level", lambda _: log_level(logs)),
            web.put("/v1/log-level", lambda request: set_log_level(logs, request)),
            web.get("/metrics", lambda _: metrics(exposition)),
        ]
    )
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    try:
        async with _listening(socket, runner):
            yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _listening(socket: Path, runner: web.AppRunner) -> AsyncIterator[None]:
    if runner.server is None:
        raise RuntimeError("the runner was not set up")
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(local.listening(socket, runner.server))
        except local.ServedError:
            # Two agents on a Node would undo each other's work.
            sentence = "another agent serves this Node; stop it, or give this one a runDirectory of its own"
            raise OSError(f"{socket}: {sentence}") from None
        yield


async def health(view: AgentView) -> web.Response:
    status = view.status
    body = {"ready": status.ready, "waitingFor": status.waiting_for, "problems": view.problems}
    return _json(body, status=200 if status.ready else 503)


async def state(view: AgentView) -> web.Response:
    status = view.status
    return _json(
        {
            "ready": status.ready,
            "waitingFor": status.waiting_for,
            "revision": status.revision,
            "generation": status.generation,
            "updated": status.updated,
            "behindSeconds": status.behind_seconds,
            "flowCount": view.switch.flow_count,
            "problems": view.problems,
            "findings": status.findings,
            "recentDenials": [str(denial) for denial in view.switch.denials.recent],
            **({} if view.state is None else _described(view.state)),
        }
    )


async def policy_objects(view: AgentView) -> web.Response:
    """The policies and the objects that they select; of other Nodes only Pods that policies of this Node select."""
    cluster = view.cluster or Cluster()
    members = (cluster.nodes, cluster.namespaces, cluster.peer_pods, cluster.pods)
    policies = (cluster.network_policies, cluster.cluster_network_policies)
    not_enforced = (cluster.admin_network_policies, cluster.baseline_admin_network_policies)
    found = (*members, *policies, *not_enforced)
    return _json({"kind": "List", "items": [one for member in found for one in member.values()]})


async def policy_counts(view: AgentView, request: web.Request) -> web.Response:
    """How many packets the rules of local Pods, or of a `?pod=`, have decided about."""
    pod = request.query.get("pod")
    pods = sorted({one.key for one in view.state.pods.values()} if view.state else ())
    if pod not in {None, *pods}:
        return _json({"error": f"there is no Pod {pod} on this Node; known: {', '.join(pods) or 'none'}"}, status=400)
    return _json(await policy_counters.counters(view, pod))


async def listing(view: AgentView, request: web.Request, member: str) -> web.StreamResponse:
    """All flows or groups, or those of an `?owner=`, a `?table=`, a `?cookie=0x`: with owner and reason."""
    try:
        asked = listings.question(request)
    except listings.BadFilter as error:
        return _json({"error": str(error)}, status=400)
    return await listings.answer(request, member, view.switch.program, view.state, asked)


async def unsupported(view: AgentView) -> web.Response:
    """Checks all flows that the agent wants in the switch: what the Node's datapath does not support, as sentences."""
    state, parts = view.state, list(view.switch.program.values())
    flows = [flow for part in parts for flow in part.flows]
    groups = [group for part in parts for group in part.groups]
    found = await asyncio.to_thread(violations, datapath_of(state.node), flows, groups) if state else []
    return _json({"unsupported": found})


async def convergence(view: AgentView, request: web.Request) -> web.Response:
    """Waits until the Node holds the state of the cluster that `revision` names."""
    status = view.status
    try:
        seconds = float(request.query.get("timeout", "0"))
    except ValueError:
        return _json({"error": "timeout: must be a number of seconds"}, status=400)
    converged = await status.wait_for_revision(request.query.get("revision", status.revision), seconds)
    body = {
        "converged": converged,
        "revision": status.revision,
        "generation": status.generation,
        "waitingFor": status.waiting_for,
        "problems": view.problems,
    }
    return _json(body, status=200 if converged else 408)


async def recent_logs(logs: Logs) -> web.Response:
    """The last lines of this agent's log."""
    return web.Response(text="".join(f"{line}\n" for line in logs.recent))


async def log_level(logs: Logs) -> web.Response:
    return _json({"level": logs.level.value, "configured": logs.configured.value, "secondsLeft": logs.seconds_left})


async def set_log_level(logs: Logs, request: web.Request) -> web.Response:
    """Sets the level to `?level=`, for `&seconds=` or until it is set again."""
    try:
        level = LogLevel(request.query.get("level", ""))
        seconds = float(request.query["seconds"]) if "seconds" in request.query else None
    except ValueError:
        levels = ", ".join(one.value for one in LogLevel)
        return _json({"error": f"level: one of {levels} is needed, and seconds must be a number"}, status=400)
    if seconds is not None and not 0 < seconds <= LONGEST_LEVEL:
        return _json({"error": f"seconds: must be more than 0 and at most {LONGEST_LEVEL:,.0f}"}, status=400)
    logs.set_level(level, seconds)
    return await log_level(logs)


async def metrics(exposition: Exposition) -> web.Response:
    return web.Response(body=await exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


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
