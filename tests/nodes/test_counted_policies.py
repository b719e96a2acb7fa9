"""The packets that policies have decided about, while a change of the cluster is read."""

from __future__ import annotations

from test_node_policies import CLIENTS, NODE, Followed, attached, cluster_of, pod, policy

from windlass.agent.policy_counters import counters_of
from windlass.model.nodes import NodeState
from windlass.model.policies import Direction
from windlass.nodes.states import run_to_end
from windlass.openflow.wire.flows import encode
from windlass.pipeline.policies import subject_flows


def test_peers_that_are_just_being_removed_are_left_out():
    node = Followed()
    allowing, web = policy(ingress=({"from": [CLIENTS]},)), pod("web", "10.1.0.2")
    node.tell(allowing, web, pod("client", "10.2.0.9", "node-2", labels={"app": "client"}))
    node.attach(attached("web", "10.1.0.2"))
    state, compiler = NodeState(NODE, pods=node.pods, policies=node.policies), node.followed.compiler
    packets = {encode(flow).key: 5 for one in node.policies.subjects.values() for flow in subject_flows(one)}

    def peers() -> list[tuple[str, ...]]:
        return [one.peers for one in counters_of(state, compiler, Direction.INGRESS, packets)]

    assert peers() == [(), ("shop/client",)]
    run_to_end(node.followed.following(cluster_of(allowing, web)))
    assert node.followed.namespaces == {"shop"}  # compiles the change, which is not applied yet
    assert peers() == [()]
