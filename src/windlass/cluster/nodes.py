"""What a Node object says about its Node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from windlass.cluster.objects import LEAVING_TAINT, Node
from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.model.nodes import OperatingSystem

OS_LABEL = "kubernetes.io/os"


class NotUsable(Exception):
    """The Node object lacks something that forwarding needs. The message says what."""


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
    """Whether the Node is being deleted or about to be: load balancers must send it no new connections."""
    return node.metadata.deletion_timestamp is not None or LEAVING_TAINT in [t.key for t in node.spec.taints or ()]


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
