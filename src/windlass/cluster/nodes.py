"""From Node objects to the model: who this Node is, and who its peers are. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from windlass.cluster.objects import LEAVING_TAINT, Cluster, Node, Problem
from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.model.nodes import OperatingSystem, Peer

OS_LABEL = "kubernetes.io/os"


class NotUsable(Exception):
    """A Node object that lacks what forwarding needs; the message says what."""


class _Taken(NotUsable):
    """A PodCIDR that somebody else has."""

    def __init__(self, cidr: IPNetwork, holder: str) -> None:
        super().__init__(f"its PodCIDR {cidr} overlaps that of Node {holder}, which keeps it")
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Identity:
    """What the cluster says about a Node, parsed."""

    name: str
    os: OperatingSystem
    addresses: Mapping[Family, IPAddress]  # the first InternalIP of each family
    other_addresses: tuple[IPAddress, ...]
    pod_cidrs: Mapping[Family, IPNetwork]


def identity(node: Node) -> Identity:
    name = node.metadata.name
    addresses: dict[Family, IPAddress] = {}
    others: list[IPAddress] = []
    for index, entry in enumerate(node.status.addresses):
        if entry.type not in {"InternalIP", "ExternalIP"}:
            continue
        try:
            address = ip_address(entry.address)
        except ValueError:
            raise NotUsable(f"status.addresses[{index}]: {entry.address!r} is not an IP address") from None
        if entry.type == "InternalIP" and family_of(address) not in addresses:
            addresses[family_of(address)] = address
        else:
            others.append(address)
    if not addresses:
        raise NotUsable("status.addresses has no InternalIP: the kubelet sets it")
    cidrs = _pod_cidrs(node)
    if not set(cidrs) & set(addresses):
        raise NotUsable("no family has both an InternalIP and a PodCIDR")
    label = (node.metadata.labels or {}).get(OS_LABEL, OperatingSystem.LINUX.value)
    windows = label == OperatingSystem.WINDOWS.value
    return Identity(
        name,
        OperatingSystem.WINDOWS if windows else OperatingSystem.LINUX,
        addresses,
        # Some clouds list the InternalIP as ExternalIP, too.
        tuple(dict.fromkeys(address for address in others if address not in addresses.values())),
        cidrs,
    )


def is_leaving(node: Node) -> bool:
    """It is being deleted, or will be: load balancers shall bring it no new connections."""
    return node.metadata.deletion_timestamp is not None or any(
        taint.key == LEAVING_TAINT for taint in node.spec.taints or ()
    )


def peers(cluster: Cluster, own: Identity, before: Mapping[str, Peer]) -> tuple[dict[str, Peer], list[Problem]]:
    """All other Nodes that can be used. A PodCIDR that two claim stays with the one that had it before."""
    usable: list[Peer] = []
    refused: dict[str, NotUsable] = {}
    for name, node in cluster.nodes.items():
        if name == own.name:
            continue
        try:
            other = identity(node)
            usable.append(Peer(name, other.addresses, other.pod_cidrs))
        except NotUsable as reason:
            refused[name] = reason
    found: dict[str, Peer] = {}
    claims = _Claims()
    claims.add(own)
    for peer in sorted(usable, key=lambda peer: (not _keeps_its_cidrs(peer, before.get(peer.name)), peer.name)):
        try:
            claims.add(peer)
            found[peer.name] = peer
        except NotUsable as reason:
            refused[peer.name] = reason
    now = "its Pods cannot be reached until this is mended"
    problems = [Problem.of(cluster.nodes[name], f"{refused[name]}; {now}") for name in sorted(refused)]
    return found, problems + _shared(cluster, own, refused)


def _shared(cluster: Cluster, own: Identity, refused: Mapping[str, NotUsable]) -> list[Problem]:
    """The same as this Node's problem: to the others, it may be the one that cannot be reached."""
    others = [name for name in sorted(refused) if isinstance(why := refused[name], _Taken) and why.holder == own.name]
    if not others or own.name not in cluster.nodes:
        return []
    cidrs, names = ", ".join(map(str, own.pod_cidrs.values())), ", ".join(others)
    sentence = f"its PodCIDR {cidrs} overlaps that of Node {names}; one of them must be deleted and register anew"
    return [Problem.of(cluster.nodes[own.name], sentence)]


def _keeps_its_cidrs(peer: Peer, before: Peer | None) -> bool:
    return before is not None and before.pod_cidrs == peer.pod_cidrs


def _pod_cidrs(node: Node) -> dict[Family, IPNetwork]:
    cidrs: dict[Family, IPNetwork] = {}
    for index, text in enumerate(node.pod_cidrs):
        try:
            cidr = ip_network(text)
        except ValueError as error:
            raise NotUsable(f"spec.podCIDRs[{index}]: {error}") from None
        if cidr.num_addresses < 4:
            raise NotUsable(f"spec.podCIDRs[{index}]: {text} has no room for a gateway and a Pod")
        if family_of(cidr) in cidrs:
            raise NotUsable(f"spec.podCIDRs[{index}]: {text} is the second of its family; one of each is used")
        cidrs[family_of(cidr)] = cidr
    if not cidrs:
        raise NotUsable("spec.podCIDRs is empty: does the controller-manager run with --allocate-node-cidrs?")
    return cidrs


class _Claims:
    """The PodCIDRs handed out so far, none overlapping another, in order: a new one can only meet its neighbours."""

    def __init__(self) -> None:
        self._spans: dict[Family, list[tuple[int, int, str]]] = {family: [] for family in Family}

    def add(self, who: Identity | Peer) -> None:
        """All of its PodCIDRs, or none and an explanation."""
        spans = {f: (int(c.network_address), int(c.broadcast_address), who.name) for f, c in who.pod_cidrs.items()}
        for family, (first, last, _) in spans.items():
            held = self._spans[family]
            place = bisect_left(held, (first,))
            for start, end, holder in held[max(place - 1, 0) : place + 1]:
                if first <= end and start <= last:
                    raise _Taken(who.pod_cidrs[family], holder)
        for family, span in spans.items():
            insort(self._spans[family], span)
