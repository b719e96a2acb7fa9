"""Datapath flows of former policies (userspace datapath): a change is complete when the switch has deleted them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fed_agents import PATIENCE, WEB, FedAgent, fed_agent, fed_node, node
from test_enforced_policies import CLIENT, pod, policy

from switches import requires_ovs
from windlass.agent import switching
from windlass.lab.network import ovs
from windlass.model.policies import DENY_UNTIL_KNOWN, NodePolicies
from windlass.program import Owner, OwnerKind

pytestmark = [
    requires_ovs,
    pytest.mark.skipif(ovs.datapath_type() != "netdev", reason="the kernel datapath needs no purge"),
]

DENIAL = policy("a", ingress=[{"from": [CLIENT]}])


@contextmanager
def no_purge_possible(fed: FedAgent) -> Iterator[None]:
    """A switch that accepts flows, but no commands."""
    socket = Path(fed.switch.folder) / "ovs-vswitchd.ctl"
    hidden = socket.with_name("hidden.ctl")
    socket.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(socket)


async def complains(fed: FedAgent) -> None:
    status = fed.agent.status
    said = await status.wait_until(lambda: "policies now deny" in str(fed.agent.view.problems), PATIENCE)
    assert said, fed.agent.view.problems


async def test_a_change_of_policies_is_retried_until_datapath_flows_are_purged() -> None:
    async with fed_agent() as fed:
        await fed.holds(pod("web"))
        held = fed.agent.status.revision
        with no_purge_possible(fed):
            revision = fed.source.put(DENIAL)
            await complains(fed)
            assert fed.agent.status.revision == held
            assert fed.agent._switch.owed
        await fed.reaches(revision)
        assert not fed.agent._switch.owed
        assert not fed.agent.view.problems


async def test_an_agent_that_starts_with_policies_is_ready_when_datapath_flows_are_purged() -> None:
    async with fed_node() as fed:
        async with fed.running():
            await fed.holds(node(), pod("web"), DENIAL)
            revision = fed.agent.status.revision
        async with fed.running():
            with no_purge_possible(fed):
                await complains(fed)
                assert not fed.agent.status.ready
            await fed.reaches(revision)
            assert not fed.agent.view.problems


async def test_datapath_flows_are_purged_for_the_policies_that_were_sent_not_for_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    purges: list[None] = []

    async def purge() -> None:
        purges.append(None)

    async with fed_agent() as fed:
        owner = Owner(OwnerKind.POD, (await fed.attach(WEB)).container_id)
        switch = fed.agent._switch
        allowing = switch.state
        assert allowing is not None
        denying = replace(allowing, policies=NodePolicies(pods={"default/web": DENY_UNTIL_KNOWN}))
        monkeypatch.setattr(switch, "_forget_datapath_flows", purge)
        is_due, may_be_sent = fed.hold_back_flows(monkeypatch)
        switch.update(denying, [owner])
        sending = asyncio.create_task(switch.bring([owner]))
        await is_due.wait()
        switch.update(allowing, [owner])
        may_be_sent.set()
        await sending
        await switch.bring([owner])
    assert len(purges) == 2


async def test_an_agent_that_starts_without_policies_needs_no_purge() -> None:
    async with fed_node() as fed, fed.running():
        with no_purge_possible(fed):
            await fed.holds(node(), pod("web"))


async def test_an_agent_that_starts_while_the_switch_does_not_answer_has_datapath_flows_purged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switching, "PATIENCE", 0.2)
    async with fed_node() as fed:
        async with fed.running():
            await fed.holds(node(), pod("web"), DENIAL)
            revision = fed.agent.status.revision
        socket = Path(fed.switch.folder) / "br-int.mgmt"
        hidden = socket.rename(socket.with_name("hidden.mgmt"))
        async with fed.running():
            status, view = fed.agent.status, fed.agent.view
            assert await status.wait_until(lambda: "no such socket" in str(view.problems), PATIENCE), view.problems
            with no_purge_possible(fed):
                hidden.rename(socket)
                await complains(fed)
            await fed.reaches(revision)


async def test_datapath_flows_of_a_pod_that_is_denied_until_it_is_known_are_purged() -> None:
    async with fed_agent() as fed:
        await fed.holds(pod("web"), policy("a", podSelector={"matchLabels": {"app": "other"}}))
        await fed.attach(WEB)
        with no_purge_possible(fed):
            revision = fed.source.put("Pod default/web")
            await complains(fed)
        await fed.reaches(revision)


async def test_they_are_purged_too_when_it_is_known_and_no_policy_selects_it() -> None:
    async with fed_agent() as fed:
        await fed.holds(policy("a", podSelector={"matchLabels": {"app": "other"}}))
        await fed.attach(WEB)
        with no_purge_possible(fed):
            revision = fed.source.put(pod("web"))
            await complains(fed)
        await fed.reaches(revision)
