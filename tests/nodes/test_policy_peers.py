"""What policies see of the objects of other Nodes."""

from __future__ import annotations

import pytest

from windlass.cluster.objects import Metadata, Node, NodeSpec, NodeStatus
from windlass.nodes.policy_peers import peer_node


@pytest.mark.parametrize("cidr", ["255.255.255.255/32", "10.0.0.1/24", "nonsense"])
def test_a_node_whose_pod_cidr_has_no_gateway_or_is_invalid_is_no_error(cidr: str):
    assert peer_node(Node(Metadata("other"), NodeSpec(pod_cidrs=(cidr,)), NodeStatus(()))).addresses == ()
