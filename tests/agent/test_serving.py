"""Services from one state of the cluster to the next: step by step or at once, it comes to the same."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network

from fed_agents import endpoints, service
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.agent.serving import Place, Serving
from windlass.cluster import objects
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.sources import ClusterChange, changes_between
from windlass.host.plans import HostChange, HostNames
from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem, TrafficMode, TunnelType

CIDR = {Family.IPV4: ip_network("172.16.1.0/24")}
SERVING_NODE = ServingNode("node-1", "", (Family.IPV4,), pod_cidrs=CIDR)
LOCAL_NODE = LocalNode(
    "node-1",
    TrafficMode.ENCAP,
    TunnelType.GENEVE,
    OperatingSystem.LINUX,
    {Family.IPV4: ip_interface("10.176.25.11/24")},
    CIDR,
    "02:00:00:00:00:01",
)
PLACE = Place(LOCAL_NODE, HostNames("eth0"), (), 1450)


def ended(steps):
    """The outcome of steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Each Service has an address and a NodePort of its own: who has what two want depends on who came first."""
    services, slices = {}, {}
    for number in draw(st.sets(st.integers(1, 5))):
        ports = [{"name": "http", "port": draw(st.integers(80, 82)), "nodePort": 30000 + number}]
        kind = draw(st.sampled_from(["ClusterIP", "NodePort"]))
        services[f"default/s{number}"] = service(f"s{number}", f"10.96.0.{number}", *ports, type=kind)
        if pods := draw(st.sets(st.integers(2, 4))):
            slices[f"default/s{number}"] = endpoints(f"s{number}", *(f"172.16.2.{pod}" for pod in sorted(pods)))
    return Cluster(services=services, slices=slices)


@settings(max_examples=60, deadline=None)
@given(st.lists(clusters(), min_size=1), st.lists(st.booleans()))
def test_many_small_steps_lead_where_one_does(states, followed):
    """Whether each state is followed, or heard only and followed with the next."""
    serving, there, before = Serving(), frozenset(), Cluster()
    for index, state in enumerate(states):
        serving.hear(ClusterChange(state, changes_between(before, state) if index else EVERYTHING))
        before = state
        if index + 1 == len(states) or index >= len(followed) or followed[index]:
            ended(serving.following(SERVING_NODE))
            change = ended(serving.claiming(PLACE))
            assert change.removed <= there
            there = there - change.removed | change.added
    anew = Serving()
    anew.hear(ClusterChange(states[-1]))
    ended(anew.following(SERVING_NODE))
    assert dict(serving.services) == dict(anew.services)
    assert there == ended(anew.claiming(PLACE)).added
    assert serving.host_plan() == anew.host_plan()


def test_another_place_asks_the_host_for_everything_anew():
    serving = Serving()
    serving.hear(ClusterChange(Cluster(services={"default/web": service("web", "10.96.0.1")})))
    ended(serving.following(SERVING_NODE))
    (route,) = ended(serving.claiming(PLACE)).added
    assert str(route) == "route 10.96.0.1/32 via 169.254.169.111 on windlass-gw0"
    elsewhere = PLACE._replace(service_cidrs=(ip_network("10.96.0.0/16"),))
    assert ended(serving.claiming(elsewhere)) == HostChange(removed=frozenset((route,)))


def test_nothing_is_asked_of_a_host_that_is_not_known_yet_and_it_is_made_up_for():
    serving = Serving()
    serving.hear(ClusterChange(Cluster(services={"default/web": service("web", "10.96.0.1")})))
    ended(serving.following(SERVING_NODE))
    assert not ended(serving.claiming())
    assert len(ended(serving.claiming(PLACE)).added) == 1


def test_a_change_that_was_heard_before_the_node_was_known_is_not_lost():
    serving = Serving()
    serving.hear(ClusterChange(Cluster(services={"default/a": service("a", "10.96.0.1")})))
    assert serving.needs_node
    both = {"default/a": service("a", "10.96.0.1"), "default/b": service("b", "10.96.0.2")}
    serving.hear(ClusterChange(Cluster(services=both), ChangeSet.of({objects.Service: {"default/b"}})))
    assert serving.needs_node
    assert ended(serving.following(SERVING_NODE)) == {"default/a", "default/b"}
    assert not serving.needs_node
