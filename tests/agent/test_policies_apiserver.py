"""What the agent reports about policies of a real kube-apiserver."""

from __future__ import annotations

import pytest
from apiserver_agents import PATIENCE, APICluster, running_agent, until

from control_planes import needs
from windlass.cluster.kubernetes import feeds
from windlass.cluster.kubernetes.connections import RequestRefused
from windlass.cluster.kubernetes.roles import rules
from windlass.lab.control.control_planes import apply

pytestmark = needs("etcd", "kube-apiserver")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "policy.networking.k8s.io"
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
    """False if the server does not know the new kind yet, which takes a moment."""
    made = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "AdminNetworkPolicy", "metadata": {"name": name}}
    try:
        await apply(api.connection, made, f"{ADMIN_POLICIES}/{name}")
    except RequestRefused:
        return False
    return True


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
async def test_an_agent_that_may_not_read_policies_waits_for_them(api):
    """Without them it cannot know which traffic is denied."""
    allowed = [{**rule, "resources": [r for r in rule["resources"] if "policies" not in r]} for rule in rules()]
    await api.allow([rule for rule in allowed if rule["resources"]])
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.reports('cannot watch resource "networkpolicies"')
        assert not one.agent.status.ready
        await api.allow(rules())
        await one.becomes_ready()
