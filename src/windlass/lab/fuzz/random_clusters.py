"""Random clusters from a seed: Nodes, external hosts and Pods; random_services.py adds the Services."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from windlass.lab.fuzz import irrelevant_objects, random_policies, random_services
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.drafts import V4, V6, Draft, EndpointState, HostDraft, NodeDraft, PodDraft
from windlass.lab.fuzz.features import Features
from windlass.model.families import Family

APPS = ("red", "green", "blue")
NODES, OTHER_NODES, SECOND = 25, 26, 27  # the segments: 10.176.<segment>.0/24
ZONES = ("east", "west")
LEGACY_PORTS = (("TCP", 53), ("TCP", 80), ("TCP", 8443), ("UDP", 53), ("UDP", 5300), ("SCTP", 7700))
PORTS = (("http", "TCP", 8000), ("dns", "UDP", 5000), ("signals", "SCTP", 7000))  # the ports of each server Pod


def cluster(seed: int, features: Features) -> Draft:
    dice = Dice(seed, "cluster")
    families = dice.weighted({(V4,): 0.4, (V4, V6): 0.25, (V6, V4): 0.15, (V6,): 0.2})
    if "ipv6" not in features:
        families = (V4,)
    mode = dice.one(("encap", "noEncap", "hybrid"))
    tunnel = dice.weighted({"geneve": 0.8, "vxlan": 0.2})
    nodes = _nodes(Dice(seed, "nodes"), families, features)
    features = possible(nodes, features)
    hosts = _hosts(Dice(seed, "hosts"), nodes, families, features)
    pods = _pods(Dice(seed, "pods"), nodes, features)
    networks = _open_addresses(Dice(seed, "open"), nodes, features)
    draft = Draft(families, mode, tunnel, networks, nodes, hosts, pods, ())
    draft = replace(draft, services=random_services.services(Dice(seed, "services"), draft, features))
    draft = irrelevant_objects.added(Dice(seed, "noise"), draft) if "noise" in features else draft
    policies = Dice(seed, "policies")
    return random_policies.added(policies, draft) if policies.chance(0.5) and "policies" in features else draft


def possible(nodes: Iterable[NodeDraft], features: Features) -> Features:
    """Windows does not support SCTP."""
    return features - {"sctp"} if any(node.windows for node in nodes) else features


def pod(dice: Dice, app: str, number: int, node: NodeDraft, features: Features, *, host_network: bool) -> PodDraft:
    """A server Pod. Pods of `red` have the same port numbers, each Pod of other apps has its own."""
    own = 100 * APPS.index(app) + (0 if app == "red" else number)
    spoken = (port for port in PORTS if port[1].lower() in {"tcp", *features})
    ports = tuple((name, protocol, first + own) for name, protocol, first in spoken)
    return PodDraft(app, number, node, ports, host_network, dice.weighted(_STATES))


_STATES = {
    EndpointState.READY: 0.84,
    EndpointState.NOT_READY: 0.05,
    EndpointState.DRAINING: 0.09,
    EndpointState.ENDED: 0.02,
}


def _nodes(dice: Dice, families: tuple[Family, ...], features: Features) -> tuple[NodeDraft, ...]:
    count = dice.weighted({2: 0.25, 3: 0.5, 4: 0.25})
    zoned = dice.chance(0.6)
    windows = dice.weighted({"none": 0.85, "one": 0.1, "all": 0.05}) if "windows" in features else "none"
    second_type = dice.one(("ExternalIP", "InternalIP"))
    nodes = []
    for number in range(1, count + 1):
        across, second, zone = dice.chance(0.35), dice.chance(0.45), dice.one(ZONES)
        in_common = dice.chance(0.6)
        nodes.append(
            NodeDraft(
                number,
                families,
                OTHER_NODES if across and number > 1 else NODES,
                (SECOND if in_common else SECOND + 10 + number) if second and "second-nics" in features else 0,
                second_type,
                zone if zoned else "",
                windows=families == (V4,) and (windows == "all" or (windows == "one" and number == 1)),
            )
        )
    return tuple(nodes)


def _hosts(
    dice: Dice, nodes: tuple[NodeDraft, ...], families: tuple[Family, ...], features: Features
) -> tuple[HostDraft, ...]:
    """One or two clients, in any of the segments or behind the router; and maybe one server."""
    segments = sorted({n.segment for n in nodes} | {n.second for n in nodes if n.second} | {OTHER_NODES, 90})
    found = [
        HostDraft(name, segment, families)
        for name, segment in zip(("client", "neighbour"), dice.some(segments, dice.number(1, 2)), strict=False)
    ]
    segment = dice.one([91, *segments])
    if dice.chance(0.4) and "external-endpoints" in features:
        found.append(HostDraft("legacy", segment, families, 80, LEGACY_PORTS))
    return tuple(found)


def _pods(dice: Dice, nodes: tuple[NodeDraft, ...], features: Features) -> tuple[PodDraft, ...]:
    found: list[PodDraft] = []
    for app in APPS:
        for _ in range(dice.weighted({1: 0.2, 2: 0.4, 3: 0.4})):
            node, on_the_host = dice.one(nodes), dice.chance(0.25)
            host_network = on_the_host and free(found, app, node)
            found.append(pod(dice, app, len(found) + 1, node, features, host_network=host_network))
    for node in dice.some(nodes, dice.number(1, 2)):
        found.append(PodDraft("", len(found) + 1, node))
    return tuple(found)


def free(pods: Iterable[PodDraft], app: str, node: NodeDraft) -> bool:
    """Whether no hostNetwork Pod of the app is on the Node: two would conflict on a port."""
    return not any(p.host_network and (p.app, p.node) == (app, node) for p in pods)


def _open_addresses(dice: Dice, nodes: tuple[NodeDraft, ...], features: Features) -> tuple[str, ...]:
    """`nodePortAddresses`: usually empty, which means all."""
    segments = sorted({node.segment for node in nodes} | {node.second for node in nodes if node.second})
    segment, closed = dice.one(segments), dice.chance(0.08)
    if not closed or "node-port-addresses" not in features:
        return ()
    return tuple(
        f"10.176.{segment}.0/24" if family is V4 else f"fd00:10:176:{segment}::/64" for family in nodes[0].families
    )
