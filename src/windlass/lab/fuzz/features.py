"""The features of random clusters, which a person can turn off, or require, by name."""

from __future__ import annotations

from collections.abc import Iterable

Features = frozenset[str]

FEATURES = {
    "ipv6": "clusters with IPv6, alone or together with IPv4",
    "second-nics": "Nodes with addresses on a NIC that is not on the bridge",
    "windows": "Nodes with the Windows profile of the pipeline, in clusters of IPv4",
    "node-port-addresses": "NodePorts on only some addresses of the Nodes",
    "udp": "Services with UDP ports",
    "sctp": "Services with SCTP ports, in clusters without Windows, which does not support it",
    "affinity": "sessionAffinity ClientIP",
    "hints": "hints for Nodes and zones in EndpointSlices",
    "ranges": "loadBalancerSourceRanges",
    "node-external-ips": "externalIPs that are addresses of a Node",
    "external-endpoints": "endpoints outside of the cluster",
    "other-endpoints": "endpoints at a Node's address on its second NIC",
    "noise": "objects that are malformed, or not for a proxy",
    "policies": "NetworkPolicies and ClusterNetworkPolicies in half of the clusters, with probes of Pods",
    "changes": "further steps that change the cluster",
    "nodes": "Nodes that join and leave between steps",
    "agents": "agents that are killed and restarted between steps",
    "switches": "switches that are restarted between steps and lose their state",
    "holds": "TCP connections that must last through all steps",
    "rates": "a constant rate of new TCP connections, none of which may fail while an endpoint can answer",
    "denials": "constant rates of new connections between Pods that policies deny, none of which may pass",
}


class UnknownFeatureError(ValueError):
    """There is no such feature; the message lists all of them."""


def named(names: Iterable[str]) -> Features:
    """Raises UnknownFeatureError."""
    found = frozenset(names)
    for name in sorted(found):
        if name not in FEATURES:
            raise UnknownFeatureError(f"there is no feature {name!r}; the features are {', '.join(FEATURES)}")
    return found


def without(names: Iterable[str]) -> Features:
    """All features except these. Raises UnknownFeatureError."""
    return frozenset(FEATURES) - named(names)


def option(features: Features) -> str:
    """The option of the command line for these features; empty for all of them."""
    gone = sorted(FEATURES.keys() - features)
    return f"--without {','.join(gone)}" if gone else ""
