"""What the agent shows of itself: to its local API, its metrics, its health checks and the cluster. It only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.agent.answers import Rejects
from windlass.agent.areas import Area
from windlass.agent.denials import DenialLog
from windlass.agent.healthchecks import ProxyHealth
from windlass.agent.news import News
from windlass.agent.status import AgentStatus
from windlass.agent.switching import ProgrammedSwitch
from windlass.cluster.clusters import Cluster
from windlass.cluster.nodes import is_leaving
from windlass.cluster.objects import Node, Problem
from windlass.cluster.sources import WatchHealth
from windlass.model.nodes import NodeState
from windlass.program import Program
from windlass.switch.programs import Counters


class AgentView:
    def __init__(self, node_name: str, status: AgentStatus, news: News, switch: ProgrammedSwitch) -> None:
        self.status = status
        self._node_name = node_name
        self._news = news
        self._switch = switch

    @property
    def state(self) -> NodeState | None:
        """The state that the Node should have; None until the first pass."""
        return self._switch.state

    @property
    def cluster(self) -> Cluster | None:
        """As the source last reported it; what the switch and the host hold may be older."""
        return self._news.cluster

    @property
    def own_node(self) -> Node | None:
        return self.cluster.nodes.get(self._node_name) if self.cluster else None

    @property
    def program(self) -> Program:
        return self._switch.program

    @property
    def flow_count(self) -> int:
        return self._switch.flow_count

    @property
    def counters(self) -> Counters:
        return self._switch.counters

    @property
    def rejects(self) -> Rejects:
        return self._switch.rejects

    @property
    def denials(self) -> DenialLog:
        return self._switch.denials

    @property
    def switch_connected(self) -> bool:
        return self._switch.is_started and not self._switch.trouble

    @property
    def watches(self) -> Sequence[WatchHealth]:
        return self._news.watches

    @property
    def problems(self) -> dict[Area, tuple[str, ...]]:
        away = self._switch.trouble
        return {**self.status.problems, **({Area.SWITCH: (away,)} if away else {})}

    def health(self) -> ProxyHealth:
        node = self.own_node
        return ProxyHealth(self.status.healthy, node is not None and not is_leaving(node), self.status.updated)

    def report(self, area: Area, problems: Iterable[str | Problem]) -> None:
        self.status.report(area, problems)
