"""The second part of `windlass bench watch`: Pods of other Nodes, which policies of this Node's Pods select.

Measured are the first list of them, when the first policy comes, and one Pod whose address changes.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from msgspec import structs

from windlass.bench import pod_documents, watch_clusters
from windlass.bench import policy_states as states
from windlass.bench.reports import Figure, figure, percentiles
from windlass.bench.watch_clusters import (
    AgentClient,
    APIServerClient,
    digest,
    run_concurrently,
    settled,
    time_write,
    watching,
)
from windlass.cluster.clusters import Cluster
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject, PeerPod, PodIP
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say

PODS = 30_000
COUNT = 300  # changes
SETTLING = 3.0  # seconds in which the agent saves its state
SIZE = states.Size(namespaces=100, pods=0, local=50, policies=50, rules=10)

_PEERS = kinds_of(Cluster)["peer_pods"]
_POLICIES = "/apis/networking.k8s.io/v1/namespaces/local/networkpolicies"
_PRIME = 7919  # so that consecutive changes concern Pods that are far apart


async def measure(say: Say) -> list[Figure]:
    with labs.opened() as lab:
        async with watch_clusters.standing(lab) as (server, agent):
            say(f"creating {PODS} Pods of other Nodes in the API server")
            await _make_pods(server)
            await settled(server, agent)
            without = agent.rss
            took, revision, pods = await _first_list(server, agent)
            say(f"an agent that knows {PODS} Pods of other Nodes: {COUNT} changes of one")
            await asyncio.sleep(SETTLING)
            changes = await _changes(server, agent, revision, pods)
            more = agent.rss - without
    return [
        figure(f"policies-first-list-{PODS}-pods", took, "s"),
        figure(f"policies-rss-{PODS}-pods", more, "MB"),
        *changes,
    ]


async def _make_pods(server: APIServerClient) -> None:
    names = ("local", *(f"team-{number}" for number in range(SIZE.namespaces)))
    made = (server.write("POST", "/api/v1/namespaces", _document(states.namespace(name))) for name in names)
    await run_concurrently(made)
    await run_concurrently(_make_pod(server, _document(states.local_pod(number))) for number in range(SIZE.local))
    await run_concurrently(_make_pod(server, pod_documents.pod(number)) for number in range(PODS))


async def _make_pod(server: APIServerClient, document: dict[str, Any]) -> None:
    """Creates the Pod, and writes its status, which is a separate resource."""
    pod = msgspec.convert(document, PeerPod, strict=False)
    spec = {"containers": [{"name": "web", "image": "none"}], "terminationGracePeriodSeconds": 0}
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods"
    await server.write("POST", path, {**document, "spec": {**spec, **document["spec"]}})
    await _write_status(server, pod, document["status"])


async def _write_status(server: APIServerClient, pod: PeerPod, status: dict[str, object]) -> None:
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/status"
    await server.write("PATCH", path, {"status": status}, "application/merge-patch+json")


async def _first_list(server: APIServerClient, agent: AgentClient) -> tuple[float, int, ObjectStore]:
    """Returns its seconds, the revision of the cluster after it, and the Pods as the agent knows them."""
    pods = await _listed(server)
    policies = [states.policy(number, SIZE) for number in range(SIZE.policies)]
    began = time.perf_counter()
    for policy in policies:
        await server.write("POST", _POLICIES, _document(policy, "networking.k8s.io/v1"))
    cluster = await server.cluster()  # without Pods of other Nodes, as nothing asked for them
    revision = int(cluster.revision, 16) ^ pods.digest
    await agent.holds(f"{revision:016x}")
    return time.perf_counter() - began, revision, pods


async def _listed(server: APIServerClient) -> ObjectStore:
    store, following = ObjectStore(_PEERS), ""
    while True:
        parameters = {**_PEERS.selectors(states.NODE), "limit": "500"} | ({"continue": following} if following else {})
        page = decoding.page(await server.connection.request("GET", _PEERS.path, parameters))
        for item in page.items or ():
            store.put(item)
        following = page.metadata.continue_
        if not following:
            return store


async def _changes(server: APIServerClient, agent: AgentClient, revision: int, store: ObjectStore) -> list[Figure]:
    known, _ = store.snapshot()
    taken: list[tuple[float, float]] = []
    async with watching(server, _PEERS) as arrivals:
        for times in range(COUNT):
            number = times * _PRIME % PODS
            before = known[f"{pod_documents.namespace_of(number)}/{pod_documents.name_of(number)}"]
            address = pod_documents.address_of(number, 1 + times)
            after = _with_address(before, address)
            revision ^= digest(_PEERS, before) ^ digest(_PEERS, after)
            write = _write_status(server, after, {"podIP": address, "podIPs": [{"ip": address}]})
            taken.append(await time_write(write, agent, revision, arrivals, f'"podIP":"{address}"'.encode()))
    switch, watch = zip(*taken, strict=True)
    return percentiles(f"policies-watch-{PODS}-pods", switch, "ms", watch)


def _with_address(pod: APIObject, address: str) -> PeerPod:
    if not isinstance(pod, PeerPod) or pod.status is None:
        raise LabError(f"Pod {pod.key} has no status")
    return structs.replace(pod, status=structs.replace(pod.status, pod_ip=address, pod_ips=(PodIP(address),)))


def _document(one: APIObject, version: str = "v1") -> dict[str, Any]:
    return {"apiVersion": version, **msgspec.to_builtins(one)}
