"""The cluster of `windlass bench policy`: Pods in many namespaces, some of them local, and policies for those.

Each policy selects one local Pod. Each of its rules allows one port from all Pods of a namespace; the first rule of
every policy names the same namespace, so that one rule of each policy selects the Pods there. Values only.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TypeVar

import msgspec

from windlass.bench import service_states
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import APIObject, Namespace, PeerPod, Pod, kind_name
from windlass.cluster.policy_objects import NetworkPolicy
from windlass.model.nodes import AttachedPod, mac_for

NODE = service_states.NODE
GROUP = "team-0"  # the namespace that a rule of every policy names

_LOCAL_PODS, _OTHER_PODS = IPv4Address("172.16.1.10"), IPv4Address("10.128.0.0")
_FIRST_PORT = 8000
_FIRST_OFPORT = 16
_NAMESPACES_APART = 7  # the rules of a policy name namespaces that are spread over all of them

_Kind = TypeVar("_Kind", bound=APIObject)
_AnyPod = TypeVar("_AnyPod", Pod, PeerPod)


class Size(msgspec.Struct, frozen=True):
    namespaces: int
    pods: int  # per namespace
    local: int  # Pods of this Node, beside those
    policies: int
    rules: int  # per policy


def cluster(size: Size) -> Cluster:
    bare = service_states.cluster(0, 0)
    everywhere = [other_pod(team, number, size) for team in range(size.namespaces) for number in range(size.pods)]
    return Cluster(
        revision="0",
        nodes=bare.nodes,
        service_cidrs=bare.service_cidrs,
        namespaces={one.key: one for one in (namespace("local"), *map(team, range(size.namespaces)))},
        pods={pod.key: pod for pod in (local_pod(number) for number in range(size.local))},
        peer_pods={pod.key: pod for pod in everywhere},
        network_policies={one.key: one for one in (policy(number, size) for number in range(size.policies))},
    )


def team(number: int) -> Namespace:
    return namespace(f"team-{number}")


def namespace(name: str, **labels: str) -> Namespace:
    return _object(Namespace, {"name": name, "labels": {"team": name, **labels}})


def other_pod(team: int, number: int, size: Size) -> PeerPod:
    """A Pod of another Node; numbers from `size.pods` on are Pods that the cluster does not have yet."""
    address = IPv4Address(address_of_other_pod(team, number, size))
    return _pod(PeerPod, f"team-{team}", f"pod-{number}", "node-2", address)


def address_of_other_pod(team: int, number: int, size: Size) -> int:
    return int(_OTHER_PODS) + (team * size.pods + number if number < size.pods else (1 << 20) + number)


def local_pod(number: int) -> Pod:
    return _pod(Pod, "local", f"pod-{number}", NODE, _LOCAL_PODS + number)


def address_of_local_pod(number: int) -> int:
    return int(_LOCAL_PODS) + number


def attached_pods(size: Size) -> dict[str, AttachedPod]:
    """The local Pods with a port, by container id."""
    addresses = [_LOCAL_PODS + number for number in range(size.local)]
    pods = (
        AttachedPod("local", f"pod-{number}", f"c{number}", f"p{number}", _FIRST_OFPORT + number, mac_for(ip), (ip,))
        for number, ip in enumerate(addresses)
    )
    return {pod.container_id: pod for pod in pods}


def policy(number: int, size: Size) -> NetworkPolicy:
    """A policy for one of the local Pods, in turn."""
    spec = {
        "podSelector": {"matchLabels": {"name": f"pod-{number % size.local}"}},
        "policyTypes": ["Ingress"],
        "ingress": [_rule(number, place, size) for place in range(size.rules)],
    }
    return _object(NetworkPolicy, {"namespace": "local", "name": f"policy-{number:04}"}, spec=spec)


def named_team(number: int, place: int, size: Size) -> int:
    """The namespace that this rule of this policy names."""
    return 1 + (number + place * _NAMESPACES_APART) % (size.namespaces - 1) if place else 0


def port_of(place: int) -> int:
    """The port that the rules at this place allow."""
    return _FIRST_PORT + place


def _rule(number: int, place: int, size: Size) -> dict[str, object]:
    peers = [{"namespaceSelector": {"matchLabels": {"team": f"team-{named_team(number, place, size)}"}}}]
    return {"from": peers, "ports": [{"protocol": "TCP", "port": port_of(place)}]}


def _pod(kind: type[_AnyPod], namespace: str, name: str, node: str, address: IPv4Address) -> _AnyPod:
    return _object(
        kind,
        {"namespace": namespace, "name": name, "labels": {"name": name, "app": namespace}},
        spec={"nodeName": node},
        status={"phase": "Running", "podIPs": [{"ip": str(address)}]},
    )


def _object(kind: type[_Kind], metadata: object, **fields: object) -> _Kind:
    """Decoded from JSON, so that no two objects share a part, as from an API server."""
    return msgspec.json.decode(
        msgspec.json.encode({"kind": kind_name(kind), "metadata": metadata, **fields}), type=kind
    )
