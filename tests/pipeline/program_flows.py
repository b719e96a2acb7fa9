"""All flows of a Program, each with its owner, and the owners that two states differ in."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.nodes import NodeState
from windlass.openflow.flows import Flow
from windlass.program import Owner, OwnerKind, Program, owners


def flows_of(program: Program) -> Iterator[tuple[Owner, Flow]]:
    for owner, owned in program.items():
        for flow in owned.flows:
            yield owner, flow


def changed_owners(before: NodeState, after: NodeState) -> Iterator[Owner]:
    """The owners whose parts may differ between the two states; all of them if the Node itself changed."""
    if before.node != after.node:
        yield from dict.fromkeys((*owners(before), *owners(after)))
        return
    for kind, old, new in (
        (OwnerKind.PEER, before.peers, after.peers),
        (OwnerKind.POD, before.pods, after.pods),
        (OwnerKind.SERVICE, before.services, after.services),
        (OwnerKind.POLICY_SUBJECT, before.policies.subjects, after.policies.subjects),
        (OwnerKind.POLICY_PORTS, before.policies.ports, after.policies.ports),
        (OwnerKind.POLICY_PEER, before.policies.peers, after.policies.peers),
    ):
        for name in () if old is new else old.keys() | new.keys():
            if old.get(name) != new.get(name):
                yield Owner(kind, name)
    old_policies, new_policies = before.policies.pods, after.policies.pods
    for container_id, pod in after.pods.items() if old_policies is not new_policies else ():
        if old_policies.get(pod.key) != new_policies.get(pod.key) and before.pods.get(container_id) == pod:
            yield Owner(OwnerKind.POD, container_id)
