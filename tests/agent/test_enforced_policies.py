"""Policies in an agent's switch: a change is one bundle, a restart sends nothing, and a new Pod is never open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from fed_agents import PATIENCE, WEB, Fed, FedAgent, fed_agent, fed_node, node

from switches import requires_ovs
from windlass.agent.agents import Agent
from windlass.cluster import lastgood
from windlass.cluster.changes import NOTHING
from windlass.cluster.clusters import decode
from windlass.cluster.objects import APIObject, Metadata, PeerPod, Pod, PodIP, PodStatus
from windlass.cluster.sources import ClusterChange
from windlass.model.policies import DENY_UNTIL_KNOWN
from windlass.program import program
from windlass.switch.ovsdb import SwitchRefusedError

pytestmark = requires_ovs

CLIENT = {"podSelector": {"matchLabels": {"app": "client"}}}


def pod(name: str, uid: str | None = None, **labels: str) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": uid, "labels": labels}
    return decoded({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "node-1"}})


def peer(name: str, address: str, **labels: str) -> PeerPod:
    return PeerPod(Metadata(name, "default", labels), None, PodStatus(pod_ips=(PodIP(address),)))


def policy(name: str, **spec: object) -> APIObject:
    metadata = {"name": name, "namespace": "default"}
    document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata}
    return decoded({**document, "spec": {"podSelector": {}, **spec}})


def decoded(document: dict[str, object]):
    return decode(document)


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[FedAgent]:
    async with fed_agent() as fed:
        yield fed


async def flows(fed: FedAgent, table: int) -> str:
    return await fed.ofctl("--no-stats", "dump-flows", "br-int", f"table={table}")


def is_computed_anew(agent: Agent) -> bool:
    state = agent.view.state
    assert state is not None
    return agent.view.switch.program == program(state)


async def test_a_pod_that_joins_a_group_is_one_flow_and_one_change(fed: FedAgent) -> None:
    rules = [{"from": [CLIENT], "ports": [{"port": port}]} for port in (80, 443)]
    await fed.holds(
        pod("web"), policy("a", ingress=rules), policy("b", ingress=rules), peer("one", "172.16.2.1", app="client")
    )
    before, sent = await flows(fed, 91), fed.agent.view.switch.counters.changes_sent
    await fed.holds(peer("two", "172.16.2.2", app="client"))
    assert fed.agent.view.switch.counters.changes_sent == sent + 1
    now = await flows(fed, 91)
    assert len(now.splitlines()) == len(before.splitlines()) + 1
    assert "nw_src=172.16.2.2" in now
    await fed.holds("PeerPod default/two")
    assert await flows(fed, 91) == before
    assert is_computed_anew(fed.agent)


async def test_a_restart_without_changes_sends_nothing_and_the_state_is_on_disk() -> None:
    async with fed_node() as fed:
        async with fed.running():
            await fed.holds(node(), pod("web"), policy("a", ingress=[{"from": [CLIENT]}]))
            await fed.holds(peer("one", "172.16.2.1", app="client"))
            assert "nw_src=172.16.2.1" in await flows(fed, 91)
            revision, held = fed.agent.status.revision, await fed.ofctl("dump-flows", "br-int", "table=91")
        saved = lastgood.load(Path(fed.agent.config.state_directory))
        assert saved is not None
        assert saved.peer_pods.keys() == {"default/one"}
        assert saved.network_policies.keys() == {"default/a"}
        async with fed.running():
            await fed.reaches(revision)
            assert fed.agent.view.switch.counters.changes_sent == 0
            assert "nw_src=172.16.2.1" in held
            assert is_computed_anew(fed.agent)


async def test_namespaces_whose_pods_are_listed_are_saved_also_if_they_have_none(fed: FedAgent) -> None:
    """An agent that starts without an API server would deny all unknown Pods by rules about these namespaces."""
    directory = Path(fed.agent.config.state_directory)
    await fed.holds(pod("web"))
    cluster = replace(fed.source._cluster, listed_namespaces=frozenset({"empty"}))
    fed.source._queue.put_nowait(ClusterChange(cluster, NOTHING))
    async with asyncio.timeout(PATIENCE):
        while (saved := lastgood.load(directory)) is None or saved.listed_namespaces != {"empty"}:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.01)


async def test_a_pod_may_do_nothing_until_the_cluster_reports_it(fed: FedAgent) -> None:
    await fed.holds(policy("a", ingress=[{"from": [CLIENT]}]))
    await fed.attach(WEB)
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods == {"default/web": DENY_UNTIL_KNOWN}
    await fed.holds(pod("web"))
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods["default/web"] != DENY_UNTIL_KNOWN


async def test_a_repeated_request_waits_for_flows_that_are_being_sent(
    fed: FedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container runtime may repeat a CNI ADD: its answer means that the Pod's policies are in the switch."""
    is_due, may_be_sent = fed.hold_back_flows(monkeypatch)
    first = asyncio.create_task(fed.agent._pods.programmed(WEB.attached(40)))
    await is_due.wait()
    second = asyncio.create_task(fed.agent._pods.programmed(WEB.attached(40)))
    for _ in range(100):  # turns of the event loop
        await asyncio.sleep(0)
    assert not second.done()
    may_be_sent.set()
    await asyncio.gather(first, second)


async def test_a_pod_whose_policies_the_switch_refuses_is_not_attached(fed: FedAgent) -> None:
    """Its other flows would connect it without them."""
    await fed.holds(policy("a", policyTypes=["Egress"]), pod("web"))
    database, held = f"--db=unix:{fed.switch.folder}/db.sock", (await flows(fed, 75)).count("table=75")
    limit = ("--id=@full", "create", "Flow_Table", f"flow_limit={held}")
    await fed.command("ovs-vsctl", database, *limit, "--", "set", "Bridge", "br-int", "flow_tables:75=@full")
    with pytest.raises(SwitchRefusedError, match=r"Pod id-web: not in the switch, .* table=75,.*TABLE_FULL"):
        await fed.attach(WEB)
    await fed.command("ovs-vsctl", database, "remove", "Bridge", "br-int", "flow_tables", "75")
    await fed.agent._pods.forget("id-web")
    await fed.attach(WEB)


class Watched(Fed):
    """A source that may deliver a Pod later, as an API server does."""

    is_complete = False


class Asked(Watched):
    """A source that knows a Pod which its watch has not delivered yet."""

    async def find_pod(self, key: str) -> Pod | None:
        await asyncio.sleep(0)
        return pod(key.partition("/")[2], "1")


@pytest.mark.parametrize("source", [Watched, Asked], ids=["cannot be found", "the API server has the earlier Pod, too"])
async def test_a_new_pod_does_not_get_the_policies_of_an_earlier_pod_of_its_name(
    fed: FedAgent, source: type[Fed]
) -> None:
    fed.agent._follower._policing._source = source()
    await fed.holds(policy("a", podSelector={"matchLabels": {"app": "new"}}), pod("web", "1"))
    attached = await fed.attach(WEB, "2")
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods == {"default/web": DENY_UNTIL_KNOWN}
    await fed.agent._pods.programmed(attached)  # as CNI CHECK does, without a UID
    await fed.holds(pod("other"))
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods == {"default/web": DENY_UNTIL_KNOWN}
    await fed.holds(pod("web", "2"))
    state = fed.agent.view.state
    assert state is not None
    assert not state.policies.pods


async def test_the_answer_to_a_repeated_request_means_that_what_was_learned_is_in_the_switch(fed: FedAgent) -> None:
    """An agent that starts again does not know the UID of a Pod until the container runtime repeats the request."""
    fed.agent._follower._policing._source = Asked()
    await fed.holds(policy("a", podSelector={"matchLabels": {"app": "new"}}), pod("web", "1"))
    attached = await fed.attach(WEB)
    async with fed.agent._passing:  # a full pass would apply it, too
        open_to_all = await flows(fed, 75)
        await fed.agent._pods.programmed(attached, "2")
        assert await flows(fed, 75) != open_to_all
        await fed.agent._pods.programmed(attached, "1")
        assert await flows(fed, 75) == open_to_all


async def test_manifests_may_have_the_uid_of_an_earlier_pod(fed: FedAgent) -> None:
    """Nothing will deliver another one."""
    await fed.holds(policy("a", ingress=[]), pod("web", "1"))
    await fed.attach(WEB, "2")
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods["default/web"] != DENY_UNTIL_KNOWN


async def test_the_agent_asks_for_a_pod_before_it_answers_cni_add(fed: FedAgent) -> None:
    fed.agent._follower._policing._source = Asked()
    await fed.holds(policy("a", ingress=[{"from": [CLIENT]}]), peer("one", "172.16.2.1", app="client"))
    await fed.attach(WEB)
    state = fed.agent.view.state
    assert state is not None
    assert state.policies.pods["default/web"] != DENY_UNTIL_KNOWN
    assert "nw_src=172.16.2.1" in await flows(fed, 91)
