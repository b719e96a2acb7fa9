"""What a random cluster may have, by names that a person can switch off and on."""

from __future__ import annotations

from collections.abc import Iterable

Features = frozenset[str]

FEATURES = {
    "ipv6": "clusters with IPv6, alone or beside IPv4",
    "second-nics": "Nodes with addresses on a NIC that is not on the bridge",
    "windows": "Nodes with the Windows profile of the pipeline, in clusters of IPv4",
    "node-port-addresses": "NodePorts on some of the Nodes' addresses only",
    "udp": "Services with UDP ports",
    "sctp": "Services with SCTP ports",
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
}
OFF = frozenset({"sctp"})  # unless asked for: OVS 3.1's userspace datapath tracks SCTP by addresses alone


class UnknownFeatureError(ValueError):
    """The sentence lists those that there are."""


def chosen(without: Iterable[str], also: Iterable[str]) -> Features:
    """All but those that are off, and `without`; and `also`."""
    gone, come = frozenset(without), frozenset(also)
    for name in sorted(gone | come):
        if name not in FEATURES:
            raise UnknownFeatureError(f"{name!r} is no feature; there are {', '.join(FEATURES)}")
    return (frozenset(FEATURES) - OFF - gone) | come


def options(features: Features) -> str:
    """The command line's options for these, as short as they can be."""
    usual = frozenset(FEATURES) - OFF
    without, also = sorted(usual - features), sorted(features - usual)
    words = [f"--without {','.join(without)}"] if without else []
    return " ".join([*words, *([f"--with {','.join(also)}"] if also else [])])
