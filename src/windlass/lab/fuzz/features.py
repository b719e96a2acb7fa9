"""What a random cluster may have, by names that a person can leave out."""

from __future__ import annotations

from collections.abc import Iterable

Features = frozenset[str]

FEATURES = {
    "ipv6": "clusters with IPv6, alone or beside IPv4",
    "second-nics": "Nodes with addresses on a NIC that is not on the bridge",
    "windows": "Nodes with the Windows profile of the pipeline, in clusters of IPv4",
    "node-port-addresses": "NodePorts on some of the Nodes' addresses only",
    "udp": "Services with UDP ports",
    "sctp": "Services with SCTP ports, where no Node is Windows, which does not carry it",
    "affinity": "sessionAffinity ClientIP",
    "hints": "hints for Nodes and zones in EndpointSlices",
    "ranges": "loadBalancerSourceRanges",
    "node-external-ips": "externalIPs that are addresses of a Node",
    "external-endpoints": "endpoints outside of the cluster",
    "other-endpoints": "endpoints at a Node's address on its second NIC",
    "noise": "objects that are malformed, or that no proxy has to do with",
    "changes": "further steps that change the cluster",
    "nodes": "Nodes that join and leave between",
    "agents": "agents that are killed and restarted between",
    "switches": "switches that are restarted between, with all that they remember",
    "holds": "TCP connections that must last through all steps",
    "rates": "new TCP connections all the time, of which none may fail where somebody can answer throughout",
}


class UnknownFeatureError(ValueError):
    """The sentence lists those that there are."""


def without(names: Iterable[str]) -> Features:
    """All but these."""
    gone = frozenset(names)
    for name in sorted(gone):
        if name not in FEATURES:
            raise UnknownFeatureError(f"{name!r} is no feature; there are {', '.join(FEATURES)}")
    return frozenset(FEATURES) - gone


def option(features: Features) -> str:
    """The command line's option for these; none where it is all of them."""
    gone = sorted(FEATURES.keys() - features)
    return f"--without {','.join(gone)}" if gone else ""
