"""Pods and Nodes of the cluster as policies see them: labels, addresses and named ports. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address, ip_network
from socket import AF_INET, inet_pton

from windlass.cluster.objects import SIDECAR, Node, PeerPod, PeerPodSpec, Pod, PodSpec
from windlass.cluster.policy_objects import Labels
from windlass.model.families import IPAddress, IPNetwork
from windlass.model.prefixes import Prefix, prefix_of
from windlass.model.services import Protocol
from windlass.policy.directories import LabelSet, PeerNode, SelectablePod
from windlass.policy.subjects import NumberedPort

_ENDED = ("Succeeded", "Failed")  # such a Pod never runs again, and its address may be given to another one
_PROTOCOLS = {protocol.name: protocol for protocol in Protocol}
_PORTS = range(1, 65536)


def selectable_pod(pod: Pod | PeerPod, attached: tuple[IPAddress, ...] | None = None) -> SelectablePod | None:
    """None for a Pod without a network of its own: it has ended, or it is in hostNetwork mode.

    `attached`: its addresses on this Node, which its status may not have yet; None: only its status has them.
    """
    spec, status = pod.spec, pod.status
    if (spec and spec.host_network) or (status and status.phase in _ENDED):
        return None
    listed = status.addresses if status else ()
    return SelectablePod(
        namespace=pod.metadata.namespace or "default",
        name=pod.metadata.name,
        labels=_label_set(pod.metadata.labels),
        addresses=tuple(map(prefix_of, attached) if attached is not None else _addresses(listed)),
        named_ports=tuple(sorted(set(_named_ports(spec))))
        if spec and (spec.containers or spec.init_containers)
        else (),
        created=pod.metadata.creation_timestamp,
    )


def peer_node(node: Node, held: Collection[IPAddress] = ()) -> PeerNode:
    """Includes the gateways of its PodCIDRs, which its host also has. `held`: addresses that the Node object lacks."""
    listed = (one.address for one in node.status.addresses if one.type in {"InternalIP", "ExternalIP"})
    addresses = dict.fromkeys((*_addresses(listed), *map(prefix_of, (*_gateways(node), *held))))
    networks = tuple(map(prefix_of, _pod_networks(node)))
    return PeerNode(node.metadata.name, _label_set(node.metadata.labels), tuple(addresses), networks)


def _label_set(labels: Labels | None) -> LabelSet:
    return tuple(sorted(labels.items())) if labels else ()


def _addresses(texts: Iterable[str | None]) -> list[Prefix]:
    found: list[Prefix] = []
    for text in texts:
        try:
            found.append((4, int.from_bytes(inet_pton(AF_INET, text or "")), 32))  # much faster than `ip_address`
        except (OSError, ValueError):
            with suppress(ValueError):  # no packet can come from or go to a malformed address
                found.append(prefix_of(ip_address(text or "")))
    return found


def _gateways(node: Node) -> Iterator[IPAddress]:
    for network in _pod_networks(node):
        with suppress(ValueError):  # such a Node is reported by `nodes`
            yield network.network_address + 1


def _pod_networks(node: Node) -> Iterator[IPNetwork]:
    for text in node.pod_cidrs:
        with suppress(ValueError):  # such a Node is reported by `nodes`
            yield ip_network(text)


def _named_ports(spec: PodSpec | PeerPodSpec) -> Iterator[NumberedPort]:
    sidecars = (one for one in spec.init_containers or () if one.restart_policy == SIDECAR)
    for container in (*(spec.containers or ()), *sidecars):
        for port in container.ports or ():
            protocol = _PROTOCOLS.get(port.protocol or "TCP")
            number = port.container_port or 0
            if port.name and protocol and number in _PORTS:
                yield port.name, protocol, number
