"""`windlass bench policy` with few Pods and policies: it gives all figures. Times are not checked."""

from __future__ import annotations

import asyncio

import pytest

from switches import requires_ovs
from windlass.bench import policy, policy_datapaths
from windlass.bench import policy_states as states
from windlass.bench.policy_runs import PolicyChangePlan, state_of
from windlass.bench.policy_states import Size

SMALL = Size(namespaces=4, pods=3, local=2, policies=6, rules=3)


@requires_ovs
def test_a_small_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch):
    plan = PolicyChangePlan(settling=0, pods=4, policies=3, namespaces=2)
    small = {"SIZE": SMALL, "ROUNDS": 2, "PLAN": plan, "DATAPATH_FLOWS": 6, "PURGED_FLOWS": 12}
    for name, value in small.items():
        monkeypatch.setattr(policy, name, value)
    monkeypatch.setattr(policy_datapaths, "ROUNDS", 1)
    report = asyncio.run(policy.run(lambda _: None))
    figures = {figure.name: figure for figure in report.figures}
    assert figures.keys() >= {
        "first-sync",
        "pod-comes-6-rules-p50",
        "pod-goes-6-rules-p99",
        "policy-of-3-rules-comes-p50",
        "policy-of-3-rules-goes-p50",
        "namespace-of-3-relabelled-p50",
        "revalidation-cpu-6-flows",
        "revalidation-cpu-6-flows-conjunctions",
        "purge-cpu-12-flows",
        "datapath-flow-cpu-after-purge",
        "rss",
    }
    assert figures["first-sync"].floor
    assert figures["restart-same-state-changes-sent"].value == 0


def test_every_policy_means_the_pods_of_the_group():
    policies = state_of(states.cluster(SMALL), SMALL).policies
    assert len(policies.pods) == SMALL.local
    assert len(policies.subjects) == SMALL.local, "of ingress; each local Pod has policies of its own"
    assert len(policies.peers) == SMALL.namespaces * SMALL.pods
