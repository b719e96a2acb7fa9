"""Policies and rules that select none of the Pods in manifests, so that their effect cannot be shown. Pure."""

from __future__ import annotations

from windlass.model.policies import Direction
from windlass.policy.connectivity import Connectivity
from windlass.policy.rules import PodPeers


def idle_policies(connectivity: Connectivity) -> frozenset[str]:
    """The policies that select no Pod."""
    return frozenset(one.name for one in connectivity.policies if not _has_pods(connectivity, one.subject))


def unjudged_policies(old: Connectivity, new: Connectivity) -> list[str]:
    """The policies that differ, or are in one state only, and select no Pod: their change may matter to other Pods."""
    before, now = old.world.policy_specs, new.world.policy_specs
    selecting = (before.keys() - idle_policies(old)) | (now.keys() - idle_policies(new))
    return sorted({name for name in {**before, **now} if before.get(name) != now.get(name)} - selecting)


def partly_judged_policies(old: Connectivity, new: Connectivity) -> list[str]:
    """The policies of which a rule differs that selects no Pod as a peer."""
    before, now = _idle_rules(old), _idle_rules(new)
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(differing.difference(unjudged_policies(old, new)))


def _idle_rules(connectivity: Connectivity) -> dict[str, frozenset[tuple[object, ...]]]:
    """By policy, what its rules say about Pods if there are no such Pods."""
    found = {
        policy.name: frozenset(
            (direction, rule.action, rule.ports, rule.named_ports, peers)
            for direction in Direction
            for rule in policy.rules(direction) or ()
            for peers in rule.peers or ()
            if isinstance(peers, PodPeers) and not _has_pods(connectivity, peers)
        )
        for policy in connectivity.policies
    }
    return {name: rules for name, rules in found.items() if rules}


def _has_pods(connectivity: Connectivity, selected: PodPeers) -> bool:
    directory = connectivity.directory
    return any(directory.matching_label_sets(one, selected.pods) for one in directory.selected_namespaces(selected))
