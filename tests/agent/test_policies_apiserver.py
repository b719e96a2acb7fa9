"""What the agent reports about policies of a real kube-apiserver."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from apiserver_agents import PATIENCE, POLICIES, APICluster, RunningAgent, agent_on, running_agent, until
from fed_agents import fed_node

from control_planes import needs
from windlass.agent import cluster_writers
from windlass.cluster.kubernetes import feeds
from windlass.cluster.kubernetes.connections import RequestRefused
from windlass.cluster.kubernetes.policy_conditions import TYPE
from windlass.cluster.kubernetes.roles import rules
from windlass.lab.control.control_planes import apply
from windlass.lab.control.definitions import CLUSTER_NETWORK_POLICIES, define
from windlass.lab.kubelets.policy_programs import programs

pytestmark = needs("etcd", "kube-apiserver")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "policy.networking.k8s.io"
CLUSTER_POLICIES = f"/apis/{GROUP}/v1alpha2/clusternetworkpolicies"
T0 = "2026-01-01T00:00:00Z"
ADMIN_POLICIES = f"/apis/{GROUP}/v1alpha1/adminnetworkpolicies"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"adminnetworkpolicies.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://example.com/a-test"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"plural": "adminnetworkpolicies", "kind": "AdminNetworkPolicy"},
        "versions": [
            {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


@pytest.mark.usefixtures("short_delays")
async def test_policies_of_a_replaced_kind_that_is_installed_later(api, monkeypatch):
    """Both agents report it, and write one Event together."""
    monkeypatch.setattr(feeds, "_ASK_AGAIN", 0.2)
    await api.put_node()
    async with running_agent(api.plane) as one, running_agent(api.plane) as other:
        for agent in (one, other):
            await agent.becomes_ready()
            await agent.has_no_problems()
        await apply(api.connection, DEFINITION, f"{CRDS}/{DEFINITION['metadata']['name']}")
        await until(lambda: put_admin_policy(api, "deny"))
        for agent in (one, other):
            await agent.reports("1 policy is not enforced: AdminNetworkPolicy deny;", area="replaced policies")
        (event,) = await until(lambda: api.events("AdminNetworkPolicy", "deny"))
        assert (event["type"], event["reason"], event["action"]) == ("Warning", "NotEnforced", "Ignore")
        found = await api.get(f"{ADMIN_POLICIES}/deny")
        assert event["regarding"] == {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "AdminNetworkPolicy",
            "name": "deny",
            "uid": found["metadata"]["uid"],
        }
        await put_admin_policy(api, "other")
        await until(lambda: api.events("AdminNetworkPolicy", "other"))
        assert len(await api.events("AdminNetworkPolicy", "deny")) == 1
        await api.delete(f"{CRDS}/{DEFINITION['metadata']['name']}")
        for agent in (one, other):
            await agent.has_no_problems()


async def put_admin_policy(api: APICluster, name: str) -> bool:
    """False while the server does not know the new kind yet."""
    made = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "AdminNetworkPolicy", "metadata": {"name": name}}
    try:
        await apply(api.connection, made, f"{ADMIN_POLICIES}/{name}")
    except RequestRefused:
        return False
    return True


def cluster_policy(name: str, *peers: object) -> dict[str, object]:
    egress = [{"name": "one", "action": "Accept", "to": list(peers)}]
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": egress}
    return {"apiVersion": f"{GROUP}/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": spec}


async def put_cluster_policy(api: APICluster, name: str, *peers: object) -> None:
    await apply(api.connection, cluster_policy(name, *peers), f"{CLUSTER_POLICIES}/{name}")


async def conditions(api: APICluster, name: str) -> list[dict]:
    return (await api.get(f"{CLUSTER_POLICIES}/{name}")).get("status", {}).get("conditions") or []


@pytest_asyncio.fixture(loop_scope="module")
async def cluster_policies(api) -> AsyncIterator[APICluster]:
    """A server with the upstream definition, if it is on this machine: then its schema checks what agents write."""
    if programs().crd.exists():
        upstream = yaml.safe_load(programs().crd.read_text())
        upstream.pop("status", None)
        await apply(api.connection, upstream, f"{CRDS}/{upstream['metadata']['name']}")
        await until(lambda: is_served(api))
    else:
        await define(api.connection, CLUSTER_NETWORK_POLICIES)
    yield api
    await api.delete(CLUSTER_POLICIES)
    await api.delete(f"{CRDS}/clusternetworkpolicies.{GROUP}")


async def is_served(api: APICluster) -> bool:
    try:
        await api.get(CLUSTER_POLICIES)
    except RequestRefused:
        return False
    return True


@pytest.mark.usefixtures("short_delays")
async def test_the_status_of_a_cluster_network_policy_says_which_parts_are_refused(cluster_policies, monkeypatch):
    """Two agents write one condition and one Event. A policy that is enforced as written gets neither."""
    api = cluster_policies
    monkeypatch.setattr(cluster_writers, "RENEWED", 0.2)
    await api.put_node()
    await put_cluster_policy(api, "good", {"networks": ["192.0.2.0/24"]})
    good = await api.get(f"{CLUSTER_POLICIES}/good")
    await put_cluster_policy(api, "names", {"domainNames": ["example.com"]})
    mine = {"type": "example.com/Ready", "status": "True", "reason": "Fine", "message": "", "lastTransitionTime": T0}
    await api.patch(f"{CLUSTER_POLICIES}/names/status", {"status": {"conditions": [mine]}})
    async with running_agent(api.plane) as one, running_agent(api.plane) as other:
        for agent in (one, other):
            await agent.becomes_ready()
        kept, condition = await until(lambda: conditions(api, "names"), accept=lambda found: len(found) == 2)
        assert kept == mine
        assert (condition["type"], condition["status"], condition["reason"]) == (TYPE, "False", "NotUsable")
        assert "egress[0], peer 0: domainNames are not supported" in condition["message"]
        (event,) = await until(lambda: api.events("ClusterNetworkPolicy", "names"))
        assert (event["type"], event["reason"]) == ("Warning", "NotUsable")
        assert "egress[0], peer 0: domainNames are not supported" in event["note"]
        written = await api.get(f"{CLUSTER_POLICIES}/names")
        assert condition["observedGeneration"] == written["metadata"]["generation"]
        for agent in (one, other):
            looked = agent.requests
            await until(lambda: requests(agent), accept=lambda now: now > looked + 3)  # noqa: B023 - awaited here
        assert await api.get(f"{CLUSTER_POLICIES}/names") == written, "they only looked"
        assert await api.get(f"{CLUSTER_POLICIES}/good") == good
        assert not await api.events("ClusterNetworkPolicy", "good")
        await put_cluster_policy(api, "names", {"networks": ["192.0.2.0/24"]})
        await until(lambda: conditions(api, "names"), accept=lambda found: found == [mine])
        for agent in (one, other):
            await agent.has_no_problems()


async def requests(agent: RunningAgent) -> int:
    return agent.requests


@pytest.mark.usefixtures("short_delays")
async def test_a_network_policy_is_no_problem(api):
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await api.put_policy("deny")
        view = one.agent.view
        assert await one.agent.status.wait_until(lambda: "default/deny" in view.cluster.network_policies, PATIENCE)
        await one.has_no_problems()


@pytest.mark.usefixtures("short_delays")
async def test_a_network_policy_with_an_unusable_part_gets_an_event(api):
    """The server accepts IPv4 networks in IPv6 notation, which no packet has."""
    await api.put_node()
    blocks = [{"ipBlock": {"cidr": cidr}} for cidr in ("::ffff:10.1.0.0/112", "10.1.0.0/16")]
    document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "mapped"}}
    spec = {"podSelector": {}, "ingress": [{"from": blocks}]}
    await apply(api.connection, {**document, "spec": spec}, f"{POLICIES}/mapped")
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await one.reports("::ffff:10.1.0.0/112 is not a CIDR; this peer is allowed nothing", area="policies")
        (event,) = await until(lambda: api.events("NetworkPolicy", "mapped"))
        assert (event["type"], event["reason"]) == ("Warning", "NotUsable")
        assert "ingress[0], peer 0: ::ffff:10.1.0.0/112 is not a CIDR" in event["note"]


def rules_without_policies() -> list[dict[str, object]]:
    allowed = [{**rule, "resources": [r for r in rule["resources"] if "policies" not in r]} for rule in rules()]  # type: ignore[attr-defined]
    return [rule for rule in allowed if rule["resources"]]


@pytest.mark.usefixtures("short_delays")
async def test_an_agent_that_may_not_read_policies_and_never_read_any_waits_for_them(api):
    """Without the policies it cannot know which traffic to deny."""
    await api.allow(rules_without_policies())
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.reports('cannot watch resource "networkpolicies"')
        assert not one.agent.status.ready
        await api.allow(rules())
        await one.becomes_ready()


@pytest.mark.usefixtures("short_delays")
async def test_an_agent_that_may_not_read_policies_any_more_enforces_the_last_known_ones(api):
    await api.put_node()
    await api.put_policy("kept")
    async with fed_node() as fed:
        async with agent_on(fed, api.plane) as one:
            await one.becomes_ready()
            await one.has_no_problems()
        await api.allow(rules_without_policies())
        await api.put_policy("unseen")
        async with agent_on(fed, api.plane) as one:
            await one.becomes_ready()
            await one.reports('cannot watch resource "networkpolicies"', "the state that was read before stays in use")
            await api.put_service("web")
            view = one.agent.view
            assert await one.agent.status.wait_until(lambda: "default/web" in view.state.services, PATIENCE)
            assert view.cluster.network_policies.keys() == {"default/kept"}
            await api.delete(f"{POLICIES}/kept")
            await api.allow(rules())
            await one.has_no_problems()
            unseen = {"default/unseen"}  # listed a moment after the server answers again
            assert await one.agent.status.wait_until(lambda: view.cluster.network_policies.keys() == unseen, PATIENCE)
