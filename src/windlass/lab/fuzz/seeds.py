"""Finds the seeds whose clusters have certain features: `windlass lab fuzz --with`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windlass.lab.fuzz import lasting_denials, random_services
from windlass.lab.fuzz.cluster_steps import RESTART, ClusterStep, cluster_steps
from windlass.lab.fuzz.documents import WrittenDocument
from windlass.lab.fuzz.drafts import V6, Draft, EndpointDraft
from windlass.lab.fuzz.features import FEATURES, Features
from windlass.lab.fuzz.random_scenarios import random_scenario

MOST_SEEDS = 2000  # to try for one cluster


class NoClusterError(ValueError):
    """No seed gives a cluster with these features; the message names them."""


def first_with(wanted: Features, seed: int, count: int, features: Features) -> list[int]:
    """The first seeds, from this one on, whose clusters have all wanted features; `features` are those of all clusters.

    Raises NoClusterError.
    """
    if wanted - features:
        raise NoClusterError(f"no cluster has {', '.join(sorted(wanted - features))}, which --without leaves out")
    found: list[int] = []
    while len(found) < count:
        start = found[-1] + 1 if found else seed
        match = next((number for number in range(start, start + MOST_SEEDS) if appear(wanted, number, features)), None)
        if match is None:
            tried = f"tried the {MOST_SEEDS} seeds from {start} on"
            raise NoClusterError(f"no cluster has all of {', '.join(sorted(wanted))}: {tried}")
        found.append(match)
    return found


def appear(wanted: Features, seed: int, features: Features) -> bool:
    """Whether all wanted features appear in the cluster of this seed, in any of its steps."""
    steps = cluster_steps(seed, features) if wanted else []
    if not all(_IN_STEPS[name](steps) for name in wanted & _IN_STEPS.keys()):
        return False
    if not all(any(_IN_DRAFTS[name](step.draft) for step in steps) for name in wanted & _IN_DRAFTS.keys()):
        return False
    of_probes = wanted & _IN_PROBES.keys()
    probes = list(_probes(seed, features)) if of_probes else []
    return all(any(_IN_PROBES[name](probe) for probe in probes) for name in of_probes)


def _probes(seed: int, features: Features) -> Iterator[WrittenDocument]:
    for part in random_scenario(seed, features).parts:
        for document in part.documents:
            if document["kind"] == "Probe" and isinstance(spec := document["spec"], dict):
                yield spec


def _has_port(protocol: str) -> Callable[[Draft], bool]:
    return lambda draft: any(port.protocol == protocol for service in draft.services for port in service.ports)


def _endpoints(draft: Draft) -> Iterator[EndpointDraft]:
    for service in draft.services:
        yield from service.endpoints or ()


def _has_other_endpoints(draft: Draft) -> bool:
    """Only a hostNetwork Pod of a Node with a second NIC has such an address."""
    pods = {pod.key for pod in draft.pods if pod.host_network and pod.node.second}
    return any(endpoint.other and endpoint.backend in pods for endpoint in _endpoints(draft))


def _has_external_endpoints(draft: Draft) -> bool:
    hosts = {host.name for host in draft.hosts}
    return any(endpoint.backend in hosts for endpoint in _endpoints(draft))


def _is_denied(probe: WrittenDocument) -> bool:
    return probe["expect"] == lasting_denials.EXPECT


_IN_DRAFTS: dict[str, Callable[[Draft], bool]] = {
    "ipv6": lambda draft: V6 in draft.families,
    "second-nics": lambda draft: any(node.second for node in draft.nodes),
    "windows": lambda draft: any(node.windows for node in draft.nodes),
    "node-port-addresses": lambda draft: bool(draft.node_port_networks),
    "udp": _has_port("UDP"),
    "sctp": _has_port("SCTP"),
    "affinity": lambda draft: any(service.affinity for service in draft.services),
    "hints": lambda draft: any(endpoint.for_nodes or endpoint.for_zones for endpoint in _endpoints(draft)),
    "ranges": lambda draft: any(one.ranges and one.type == "LoadBalancer" for one in draft.services),
    "node-external-ips": lambda draft: any(random_services.uses_a_node(draft, service) for service in draft.services),
    "external-endpoints": _has_external_endpoints,
    "other-endpoints": _has_other_endpoints,
    "noise": lambda draft: bool(draft.noise),
    "policies": lambda draft: bool(draft.policies),
}
_IN_STEPS: dict[str, Callable[[Sequence[ClusterStep]], bool]] = {
    "changes": lambda steps: len(steps) > 1,
    "nodes": lambda steps: len({step.draft.nodes for step in steps}) > 1,
    "agents": lambda steps: any(step.verb == "killAgent" for step in steps),
    "switches": lambda steps: any(step.verb == RESTART for step in steps),
}
_IN_PROBES: dict[str, Callable[[WrittenDocument], bool]] = {
    "holds": lambda spec: "hold" in spec,
    "rates": lambda spec: "rate" in spec and not _is_denied(spec),
    "denials": lambda spec: "rate" in spec and _is_denied(spec),
}
if FEATURES.keys() != {*_IN_DRAFTS, *_IN_STEPS, *_IN_PROBES}:
    raise AssertionError("each feature must be recognized in exactly one of the tables")
