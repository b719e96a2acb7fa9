"""A real API server accepts the chart, and limits each agent to its own Node and to the fields of Windlass."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from charts import ROOT, helm, needs_helm

from control_planes import needs, running_control_plane
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.writing import GATEWAY_ADDRESSES, NOT_READY, UPLINK_MAC, mark_node
from windlass.host.linux import namespaces
from windlass.lab.control import kubernetes_binaries
from windlass.lab.control.control_planes import AGENT, OBJECTS_ONLY, ControlPlane, Extent, apply

pytestmark = needs("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
MANIFESTS = sorted((ROOT / "deploy" / "manifests").glob("*.yaml"))
ACCOUNT = "/api/v1/namespaces/windlass/serviceaccounts/windlass-agent"
FORBIDDEN = 403
# This controller checks the expressions of a ValidatingAdmissionPolicy against the types of the objects it matches.
READS_POLICIES = Extent(OBJECTS_ONLY.server, ("--controllers=validatingadmissionpolicy-status-controller",))

OTHERS = {"key": "example.org/theirs", "value": "kept", "effect": "NoSchedule"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(tmp_path_factory) -> AsyncIterator[ControlPlane]:
    """With Windlass's namespace, and nothing else of it."""
    async with running_control_plane(tmp_path_factory.mktemp("cp"), READS_POLICIES) as plane:
        await kubectl(plane, "create", "namespace", "windlass", "--save-config")
        yield plane


async def kubectl(plane: ControlPlane, *arguments: str, text: str = "") -> str:
    command = [str(kubernetes_binaries.path_of("kubectl")), f"--kubeconfig={plane.kubeconfig()}", *arguments]

    def run() -> subprocess.CompletedProcess[str]:
        with namespaces.entered(namespaces.path_of(plane.namespace)):
            return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# What is in deploy/ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
async def test_the_rendered_manifests_are_accepted(control_plane, file: Path):
    said = await kubectl(control_plane, "apply", "--dry-run=server", "--validate=strict", "-f", str(file))
    assert "Warning" not in said
    for made in ("daemonset.apps/windlass-agent", "daemonset.apps/windlass-switch", "configmap/windlass"):
        assert f"{made} created" in said


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        ("config.datapathType=netdev",),
        ("privileged=true", "nodeSelector.example\\.org/network=windlass"),
        ("config.metricsBindAddress=:10249", "image.pullSecrets={registry}", "agent.maxUnavailable=1"),
    ],
    ids=lambda settings: settings[0],
)
async def test_the_api_server_accepts_the_chart_with_other_values(control_plane, settings):
    made = helm("apiServer=https://10.0.0.1:6443", *settings)
    assert made.returncode == 0, made.stderr
    said = await kubectl(control_plane, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=made.stdout)
    assert "Warning" not in said


# What an agent may do ------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(control_plane) -> ControlPlane:
    """Windlass installed, two Nodes, and a Pod of the agent on each."""
    await kubectl(control_plane, "apply", "-f", str(MANIFESTS[0]))
    async with control_plane.connection() as administrator:
        for name in ("node-1", "node-2"):
            await apply(administrator, _node(name), f"/api/v1/nodes/{name}")
            pod = _pod(name)
            await apply(administrator, pod, f"/api/v1/namespaces/windlass/pods/{pod['metadata']['name']}")
    async with agent_of(control_plane, "node-1") as stranger, asyncio.timeout(60):
        while True:  # a new policy is in force a moment after it was made
            try:
                await patch(stranger, "node-2", {"metadata": {"annotations": {UPLINK_MAC: secrets.token_hex(4)}}})
            except RequestRefused as error:
                if error.code == FORBIDDEN and "token was issued on" in str(error):
                    return control_plane
                raise


def _node(name: str) -> dict[str, object]:
    metadata = {"name": name, "annotations": {"example.org/theirs": "kept"}, "labels": {"example.org/theirs": "kept"}}
    spec = {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "taints": [OTHERS, NOT_READY]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def _pod(node: str) -> dict[str, object]:
    container = {"name": "agent", "image": "windlass"}
    spec = {"nodeName": node, "serviceAccountName": "windlass-agent", "containers": [container]}
    metadata = {"name": f"agent-{node}", "namespace": "windlass"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def agent_of(plane: ControlPlane, node: str | None) -> AsyncIterator[APIConnection]:
    """With a token as kubelet gets it for the Pod on that Node; None: a token that is not bound to a Pod."""
    bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": f"agent-{node}"}} if node else {}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], **bound}}
    async with plane.connection() as administrator:
        answer = await administrator.request("POST", f"{ACCOUNT}/token", body=msgspec.json.encode(body))
    access = msgspec.structs.replace(plane.access(AGENT), token=msgspec.json.decode(answer)["status"]["token"])
    async with APIConnection(lambda: access, plane.socket_factory) as connection:
        yield connection


async def patch(connection: APIConnection, node: str, change: dict[str, object]) -> None:
    body, kind = msgspec.json.encode(change), "application/merge-patch+json"
    await connection.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=kind)


async def read(plane: ControlPlane, node: str) -> dict[str, Any]:
    async with plane.connection() as administrator:
        return msgspec.json.decode(await administrator.request("GET", f"/api/v1/nodes/{node}"))


async def test_the_policy_has_no_mistakes(installed):
    await installed.start_controllers()
    policy = "validatingadmissionpolicy/windlass-agent"
    await kubectl(installed, "wait", policy, "--for=jsonpath={.status.observedGeneration}=1", "--timeout=60s")
    told = msgspec.json.decode(await kubectl(installed, "get", policy, "-o", "json"))
    assert told["status"].get("typeChecking", {}) == {}


async def test_an_agent_marks_its_own_node(installed):
    """By the agent's own code; what others have there stays."""
    marks = {UPLINK_MAC: "02:00:00:00:00:01", GATEWAY_ADDRESSES: "10.1.0.1"}
    async with agent_of(installed, "node-1") as agent:
        await mark_node(agent, "node-1", marks, is_ready=True)
        ready = await read(installed, "node-1")
        await mark_node(agent, "node-1", {**marks, UPLINK_MAC: "02:00:00:00:00:02"}, is_ready=False)
        await patch(agent, "node-1", {"metadata": {"annotations": {GATEWAY_ADDRESSES: None}}})
        waiting = await read(installed, "node-1")
    others = [taint for taint in ready["spec"]["taints"] if taint != NOT_READY]  # the server has added one of its own
    assert OTHERS in others
    assert ready["spec"]["taints"] == others
    assert ready["metadata"]["annotations"].items() >= {**marks, "example.org/theirs": "kept"}.items()
    assert waiting["spec"]["taints"] == [*others, NOT_READY]
    assert waiting["metadata"]["annotations"][UPLINK_MAC] == "02:00:00:00:00:02"
    assert GATEWAY_ADDRESSES not in waiting["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("node", "bound_to", "change", "sentence"),
    [
        ("node-2", "node-1", {"metadata": {"annotations": {UPLINK_MAC: "x"}}}, "its token was issued on"),
        ("node-2", "node-1", {"spec": {"taints": [OTHERS]}}, "its token was issued on"),
        ("node-1", None, {"metadata": {"annotations": {UPLINK_MAC: "x"}}}, "its token was issued on"),
        ("node-1", "node-1", {"metadata": {"annotations": {"example.org/theirs": "x"}}}, "no annotations of a Node"),
        ("node-1", "node-1", {"metadata": {"annotations": {"example.org/theirs": None}}}, "no annotations of a Node"),
        ("node-1", "node-1", {"metadata": {"annotations": {"example.org/new": "x"}}}, "no annotations of a Node"),
        ("node-1", "node-1", {"metadata": {"labels": {"example.org/new": "x"}}}, "nothing of a Node's metadata"),
        ("node-1", "node-1", {"metadata": {"labels": None}}, "nothing of a Node's metadata"),
        ("node-1", "node-1", {"metadata": {"finalizers": ["example.org/x"]}}, "nothing of a Node's metadata"),
        ("node-1", "node-1", {"spec": {"taints": None}}, "no taint of a Node"),
        ("node-1", "node-1", {"spec": {"taints": [{**OTHERS, "value": "x"}]}}, "no taint of a Node"),
        ("node-1", "node-1", {"spec": {"taints": [OTHERS, {**OTHERS, "key": "x/y"}]}}, "no taint of a Node"),
        ("node-1", "node-1", {"spec": {"unschedulable": True}}, "nothing of a Node's spec"),
        ("node-1", "node-1", {"spec": {"providerID": "x://y"}}, "nothing of a Node's spec"),
    ],
)
async def test_an_agent_may_not_change_anything_else_of_a_node(installed, node, bound_to, change, sentence):
    before = await read(installed, node)
    async with agent_of(installed, bound_to) as agent:
        with pytest.raises(RequestRefused, match=sentence) as refused:
            await patch(agent, node, change)
    assert refused.value.code == FORBIDDEN
    assert await read(installed, node) == before


async def test_other_users_may_change_nodes(installed):
    async with installed.connection() as administrator:
        await patch(administrator, "node-2", {"spec": {"unschedulable": True}})
    assert (await read(installed, "node-2"))["spec"]["unschedulable"] is True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/nodes/node-1"),
        ("PATCH", "/api/v1/nodes/node-1/status"),
        ("GET", "/api/v1/namespaces/windlass/secrets"),
        ("GET", "/api/v1/namespaces/windlass/configmaps"),
        ("PATCH", "/apis/apps/v1/namespaces/windlass/daemonsets/windlass-agent"),
        ("POST", f"{ACCOUNT}/token"),
    ],
)
async def test_an_agent_has_no_other_permissions(installed, method, path):
    async with agent_of(installed, "node-1") as agent:
        with pytest.raises(RequestRefused) as refused:
            await agent.request(method, path, body=b"{}", content_type="application/merge-patch+json")
    assert refused.value.code == FORBIDDEN
