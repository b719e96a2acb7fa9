"""What the agent reports about policies of a real kube-apiserver."""

from __future__ import annotations

import pytest
from apiserver_agents import POLICIES, running_agent, until

from control_planes import needs
from windlass.cluster.kubernetes import feeds
from windlass.cluster.kubernetes.connections import RequestRefused
from windlass.cluster.kubernetes.roles import rules
from windlass.lab.control.control_planes import apply

pytestmark = needs("etcd", "kube-apiserver")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICY_GROUP = "policy.networking.k8s.io"
CLUSTER_POLICIES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"clusternetworkpolicies.{POLICY_GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://example.com/a-test"},
    },
    "spec": {
        "group": POLICY_GROUP,
        "scope": "Cluster",
        "names": {"plural": "clusternetworkpolicies", "kind": "ClusterNetworkPolicy"},
        "versions": [
            {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


@pytest.mark.usefixtures("short_delays")
async def test_a_network_policy_is_reported_and_has_one_event(api):
    await api.put_node()
    async with running_agent(api.plane) as one, running_agent(api.plane) as other:
        for agent in (one, other):
            await agent.becomes_ready()
            await agent.has_no_problems()
        await api.put_policy("deny")
        for agent in (one, other):
            await agent.reports("1 policy is not enforced: NetworkPolicy default/deny;", area="policies")
        (event,) = await until(lambda: api.events("NetworkPolicy", "deny"))
        assert (event["type"], event["reason"], event["action"]) == ("Warning", "NotEnforced", "Ignore")
        found = await api.get(f"{POLICIES}/deny")
        assert event["regarding"] == {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "namespace": "default",
            "name": "deny",
            "uid": found["metadata"]["uid"],
        }
        await api.put_policy("other")
        await until(lambda: api.events("NetworkPolicy", "other"))
        assert len(await api.events("NetworkPolicy", "deny")) == 1
        await api.delete(POLICIES)
        for agent in (one, other):
            await agent.has_no_problems()


async def test_a_kind_of_policy_that_is_installed_later(api, monkeypatch):
    monkeypatch.setattr(feeds, "_ASK_AGAIN", 0.2)
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await one.has_no_problems()
        await apply(api.connection, CLUSTER_POLICIES, f"{CRDS}/{CLUSTER_POLICIES['metadata']['name']}")
        made = {"apiVersion": f"{POLICY_GROUP}/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "deny"}}
        path = f"/apis/{POLICY_GROUP}/v1alpha2/clusternetworkpolicies/deny"

        async def is_made() -> bool:
            """The server takes a moment to know the new kind."""
            try:
                await apply(api.connection, made, path)
            except RequestRefused:
                return False
            return True

        await until(is_made)
        await one.reports("1 policy is not enforced: ClusterNetworkPolicy deny;", area="policies")
        await api.delete(f"{CRDS}/{CLUSTER_POLICIES['metadata']['name']}")
        await one.has_no_problems()


async def test_a_role_without_policies_does_not_stop_the_network(api):
    allowed = [{**rule, "resources": [r for r in rule["resources"] if "policies" not in r]} for rule in rules()]
    await api.allow([rule for rule in allowed if rule["resources"]])
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await one.reports('cannot watch resource "networkpolicies"', area="cluster source")
