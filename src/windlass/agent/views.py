"""What the agent shows of itself: to its local API, its metrics, its health checks and the cluster. It only reads."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.agent.areas import Area
from windlass.agent.healthchecks import ProxyHealth
from windlass.agent.news import News
from windlass.agent.status import AgentStatus
from windlass.agent.switching import ProgrammedSwitch
from windlass.cluster.clusters import Cluster
from windlass.cluster.nodes import is_leaving
from windlass.cluster.objects import Node
from windlass.model.nodes import NodeState


@dataclass(frozen=True, slots=True, eq=False)
class AgentView:
    node_name: str
    status: AgentStatus
    news: News
    switch: ProgrammedSwitch

    @property
    def state(self) -> NodeState | None:
        """The state that the Node should have; None until the first pass."""
        return self.switch.state

    @property
    def cluster(self) -> Cluster | None:
        """The cluster as the source last reported it; what the switch and the host hold may be older."""
        return self.news.cluster

    @property
    def own_node(self) -> Node | None:
        return self.cluster.nodes.get(self.node_name) if self.cluster else None

    @property
    def problems(self) -> dict[Area, tuple[str, ...]]:
        away = self.switch.trouble
        return {**self.status.problems, **({Area.SWITCH: (away,)} if away else {})}

    def health(self) -> ProxyHealth:
        node = self.own_node
        return ProxyHealth(self.status.healthy, node is not None and not is_leaving(node), self.status.updated)
