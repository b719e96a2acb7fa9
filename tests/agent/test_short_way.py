"""Changes of Services and peers without a full pass: no packet and no change is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest
import pytest_asyncio
from fed_agents import FedAgent, endpoints, fed_agent, node, other_node, service, service_cidr

from switches import requires_ovs
from windlass.host.linux.hosts import LinuxHost
from windlass.host.plans import HostChange, HostNames, HostPlan, NodePort, Route
from windlass.model.families import Family
from windlass.model.nodes import AttachedPod
from windlass.program import Owner, Program, owners, program

pytestmark = requires_ovs

NODE_PORT = {"name": "http", "port": 80, "nodePort": 30080}


class BusyHost(LinuxHost):
    """A host that answers only while `free` is set, so that a pass can be held up."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.free, self.asked = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def installed(self, names: HostNames) -> HostPlan:
        self.asked.set()
        await self.free.wait()
        return await super().installed(names)


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[FedAgent]:
    async with fed_agent(BusyHost) as fed:
        yield fed


async def test_an_added_endpoint_is_one_message(fed: FedAgent) -> None:
    await fed.holds(
        service("web", "10.96.0.1"), endpoints("web", "172.16.1.5"), service("shop", "10.96.0.2"), endpoints("shop")
    )
    before = fed.agent.view.switch.counters.changes_sent
    await fed.holds(endpoints("web", "172.16.1.5", "172.16.2.5"))
    assert fed.agent.view.switch.counters.changes_sent == before + 1
    assert "172.16.2.5:8080" in await fed.ofctl("dump-groups", "br-int")


async def test_a_change_without_effect_is_complete_without_a_message(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1"), endpoints("web", "172.16.1.5"))
    before = fed.agent.view.switch.counters.changes_sent
    await fed.holds(endpoints("web", "172.16.1.5"))
    assert fed.agent.view.switch.counters.changes_sent == before


async def test_changes_that_arrive_together_are_applied_together(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1"), endpoints("web", "172.16.1.5"))
    before = fed.agent.status.generation
    for number in range(1, 100):
        revision = fed.source.put(endpoints("web", f"172.16.2.{number}"), service(f"s{number}", f"10.96.1.{number}"))
    await fed.reaches(revision)
    assert fed.agent.status.generation - before < 20
    groups, flows = await fed.ofctl("dump-groups", "br-int"), await fed.ofctl("dump-flows", "br-int")
    assert groups.count("172.16.2.") == 1
    assert "172.16.2.99:8080" in groups
    assert all(f"nw_dst=10.96.1.{number} " in flows for number in range(1, 100))


async def test_a_change_during_a_pass_is_not_lost(fed: FedAgent) -> None:
    """Alternating changes of Nodes and of Services, without waiting."""
    for number in range(1, 30):
        fed.source.put(service(f"s{number}", f"10.96.1.{number}"), endpoints(f"s{number}", f"172.16.2.{number}"))
        fed.source.put(node(labels={"number": str(number)}))
        revision = fed.source.put(endpoints(f"s{number}", f"172.16.3.{number}"))
    await fed.reaches(revision)
    groups = await fed.ofctl("dump-groups", "br-int")
    assert "172.16.2." not in groups
    assert all(f"172.16.3.{number}:8080" in groups for number in range(1, 30))


class Witness(LinuxHost):
    """Looks at the switch whenever NodePorts of the host are added or removed."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.fed: FedAgent | None = None
        self.seen: list[tuple[str, bool]] = []

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        for what, items in (("comes", change.added), ("goes", change.removed)):
            if self.fed is not None and any(isinstance(item, NodePort) for item in items):
                flows = await self.fed.ofctl("dump-flows", "br-int", "table=6")
                self.seen.append((what, "tp_dst=30080" in flows))
        return await super().apply(change)


async def test_the_switch_has_a_node_port_whenever_the_host_routes_to_it() -> None:
    async with fed_agent(Witness) as fed:
        fed.host.fed = fed
        await fed.holds(service("web", "10.96.0.1", NODE_PORT, type="NodePort"), endpoints("web", "172.16.1.5"))
        assert fed.host.seen == [("comes", True)]
        assert "30080" in await fed.command("nft", "list", "table", "inet", "windlass")
        await fed.holds("Service default/web")
        assert fed.host.seen == [("comes", True), ("goes", True)]
        assert "30080" not in await fed.command("nft", "list", "table", "inet", "windlass")
        assert "tp_dst=30080" not in await fed.ofctl("dump-flows", "br-int", "table=6")


async def test_a_node_port_that_moves_to_another_service_stays_open() -> None:
    async with fed_agent(Witness) as fed:
        await fed.holds(service("web", "10.96.0.1", NODE_PORT, type="NodePort"), endpoints("web", "172.16.1.5"))
        fed.host.fed = fed
        await fed.holds(
            service("web", "10.96.0.1"),
            service("shop", "10.96.0.2", NODE_PORT, type="NodePort"),
            endpoints("shop", "172.16.1.6"),
        )
        assert fed.host.seen == []
        assert "30080" in await fed.command("nft", "list", "table", "inet", "windlass")


async def test_a_cluster_ip_has_a_route_of_its_own_until_its_cidr_is_known(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1"))
    assert "10.96.0.1 " in await fed.command("ip", "route")
    await fed.holds(service_cidr("10.96.0.0/16"))
    routes = await fed.command("ip", "route")
    assert "10.96.0.0/16 via 169.254.169.111" in routes
    assert "10.96.0.1 " not in routes
    await fed.holds(service("shop", "10.97.0.1"), "Service default/web")
    routes = await fed.command("ip", "route")
    assert "10.97.0.1 via 169.254.169.111" in routes


async def test_a_problem_of_a_service_is_reported_until_it_is_fixed(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1", {"name": "http", "port": 0}))
    assert "spec.ports[0].port: 0 is outside" in str(fed.agent.view.problems["services"])
    await fed.holds(service("web", "10.96.0.1", {"name": "http", "port": 70000}))
    assert "spec.ports[0].port: 70000 is outside" in str(fed.agent.view.problems["services"])
    await fed.holds(service("web", "10.96.0.1"))
    assert "services" not in fed.agent.view.problems


@pytest.mark.parametrize("seed", range(3))
async def test_many_incremental_changes_give_the_same_as_one_pass(fed: FedAgent, seed: int) -> None:
    """After random changes, some without waiting, the switch has exactly the flows of a new agent."""
    dice = random.Random(seed)  # noqa: S311 (repeatable)
    present: set[str] = set()
    for _ in range(60):
        name = f"s{dice.randrange(8)}"
        if dice.random() < 0.2:
            peer = f"node-{dice.randrange(2, 5)}"
            if peer in present and dice.random() < 0.5:
                revision = fed.source.put(f"Node {peer}")
                present.remove(peer)
            else:
                number, address = int(peer[-1]), dice.randrange(20, 40)
                revision = fed.source.put(other_node(number, f"10.176.{dice.choice((25, 26))}.{address}"))
                present.add(peer)
        elif f"default/{name}" in present and dice.random() < 0.2:
            revision = fed.source.put(f"Service default/{name}")
            present.remove(f"default/{name}")
        else:
            ports = [{"name": "http", "port": 80, "nodePort": 30000 + dice.randrange(8)}] if dice.random() < 0.5 else []
            kind = "NodePort" if ports else "ClusterIP"
            chosen = [f"172.16.{dice.randrange(1, 3)}.{dice.randrange(2, 9)}" for _ in range(dice.randrange(4))]
            address = f"10.96.0.{dice.randrange(1, 9)}"
            revision = fed.source.put(service(name, address, *ports, type=kind), endpoints(name, *chosen))
            present.add(f"default/{name}")
        if dice.random() < 0.5:
            await fed.reaches(revision)
    await fed.reaches(revision)
    switch, context, state = fed.agent._switch, fed.agent._follower.context, fed.agent.view.state
    assert await switch._installed.audit() == 0
    assert _contents(switch.program) == _contents(program(state))
    wanted = frozenset().union(*(context.items_of(owner, state) for owner in owners(state)))
    there = (await fed.host.installed(HostNames("eth0"))).items
    assert {item for item in there if isinstance(item, NodePort)} == {i for i in wanted if isinstance(i, NodePort)}
    assert {item for item in there if isinstance(item, Route)} >= {item for item in wanted if isinstance(item, Route)}
    routed = {str(item.destination) for item in there if isinstance(item, Route)}
    peers = {str(peer.pod_cidrs[Family.IPV4]) for peer in state.peers.values()}
    assert routed & {f"172.16.{number}.0/24" for number in range(2, 6)} == peers


async def test_a_peer_that_joins_changes_and_leaves_is_followed_without_a_pass(fed: FedAgent) -> None:
    """Its flows and its route, and no flow of any other owner."""
    async with fed.agent._passing:  # no pass can begin
        await fed.holds(service("web", "10.96.0.1"), endpoints("web", "172.16.1.5"))
        before = await fed.ofctl("dump-flows", "br-int")
        await fed.holds(other_node(2, "10.176.26.12"))
        assert "172.16.2.0/24" in await fed.ofctl("dump-flows", "br-int")
        assert "172.16.2.0/24 via 172.16.2.1 dev windlass-gw0" in await fed.command("ip", "route")
        await fed.holds(other_node(2, "10.176.26.13"))
        assert "10.176.26.13" in await fed.ofctl("dump-flows", "br-int")
        assert "10.176.26.12" not in await fed.ofctl("dump-flows", "br-int")
        await fed.holds("Node node-2")
        assert "172.16.2.0/24" not in await fed.command("ip", "route")
        assert (await fed.ofctl("dump-flows", "br-int")).count("\n") == before.count("\n")


async def test_neither_a_pod_nor_a_service_waits_for_a_pass(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1"), endpoints("web", "172.16.1.5"))
    fed.host.free.clear()
    fed.host.asked.clear()
    fed.agent._requests.request()
    await fed.host.asked.wait()
    revision = fed.source.put(endpoints("web", "172.16.2.9"))
    await asyncio.wait_for(_group_has(fed, "172.16.2.9:8080"), 30)
    pod = AttachedPod("default", "p", "c1", "p1", 99, "0a:58:ac:10:01:05", (ip_address("172.16.1.5"),))
    await asyncio.wait_for(fed.agent._pods.programmed(pod), 30)
    assert "in_port=99" in await fed.ofctl("dump-flows", "br-int")
    assert fed.agent._passing.locked(), "the pass is still under way"
    assert int(fed.agent.status.revision) < int(revision), "and so its state of the cluster is not held yet"
    fed.host.free.set()
    await fed.reaches(revision)


async def test_a_service_with_a_node_port_is_in_the_switch_while_the_host_is_busy(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1"))
    fed.host.free.clear()
    fed.host.asked.clear()
    fed.agent._requests.request()
    await fed.host.asked.wait()
    revision = fed.source.put(
        service("shop", "10.96.0.2", NODE_PORT, type="NodePort"), endpoints("shop", "172.16.1.6"), "Service default/web"
    )
    await asyncio.wait_for(_group_has(fed, "172.16.1.6:8080"), 30)
    assert "30080" not in await fed.command("nft", "list", "table", "inet", "windlass")
    assert "nw_dst=10.96.0.1" in await fed.ofctl("dump-flows", "br-int"), "the host still leads there"
    fed.host.free.set()
    await fed.reaches(revision)
    assert "30080" in await fed.command("nft", "list", "table", "inet", "windlass")
    assert "nw_dst=10.96.0.1" not in await fed.ofctl("dump-flows", "br-int")


async def _group_has(fed: FedAgent, endpoint: str) -> None:
    while endpoint not in await fed.ofctl("dump-groups", "br-int"):
        pass


def _contents(program: Program) -> dict[Owner, object]:
    return {owner: (part.flows, part.groups) for owner, part in program.items()}
