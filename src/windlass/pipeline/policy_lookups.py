"""What a local Pod may exchange with an address, by the lookups that the flows of `policies` make."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.model.families import IPAddress
from windlass.model.policies import NO_CLASS, Direction, NodePolicies, PeerEntry, PolicySubject
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet
from windlass.model.prefixes import prefix_of, prefix_text


def permitted_ports(policies: NodePolicies, direction: Direction, pod: str, peer: IPAddress) -> PortSet:
    """Without the traffic from the Pod's own Node, which is always allowed."""
    of_pod = policies.pods.get(pod)
    policy = of_pod.of(direction) if of_pod else None
    if policy is None:
        return ALL_PORTS
    subject = policies.subjects.get(PolicySubject.key_of(direction, policy.subject))
    if subject is None:  # the labels of the Pod are not known yet
        return NO_PORTS
    to_itself = dict(policy.itself).get(prefix_of(peer))
    if to_itself is not None:
        return to_itself
    return subject.verdicts.get(_class_of(policies.peers, direction, peer), subject.default)


def _class_of(peers: Mapping[str, PeerEntry], direction: Direction, address: IPAddress) -> int:
    """The longest prefix that has an entry decides."""
    version, value, longest = prefix_of(address)
    for length in range(longest, -1, -1):
        rest = longest - length
        entry = peers.get(prefix_text((version, value >> rest << rest, length)))
        found = entry.of(direction) if entry else None
        if found is not None:
            return found
    return NO_CLASS
