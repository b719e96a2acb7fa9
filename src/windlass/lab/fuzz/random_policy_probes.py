"""Random connections to Pods, to the Nodes' own ports and to machines outside, whose outcome depends on policies.

Their clients are Pods, Nodes, and machines outside if the underlay has routes to the Pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.lab.fuzz import oracle, random_probes
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument, nonempty
from windlass.lab.fuzz.oracle import Client, Prediction, Query
from windlass.lab.scenarios.directives import ExternalHost
from windlass.lab.scenarios.objects import LabPod, ProbeOutcome
from windlass.model.families import family_of

THROWS = 6

_Thrown = tuple[Query, WrittenDocument, Prediction]


def chosen(dice: Dice, cluster: ClusterView, wanted: int) -> Iterator[WrittenDocument]:
    """This many probes of Pods and Nodes."""
    return _chosen("pod", lambda: throw(dice, cluster), wanted)


def outside(dice: Dice, cluster: ClusterView, wanted: int) -> Iterator[WrittenDocument]:
    """This many probes between Pods and machines outside."""
    return _chosen("outside", lambda: _throw_outside(dice, cluster), wanted)


def _chosen(word: str, throw_one: Callable[[], _Thrown | None], wanted: int) -> Iterator[WrittenDocument]:
    """Alternates between denied and allowed connections as long as there are both."""
    seen: set[Query] = set()
    for number in range(wanted):
        throws = [one for one in (throw_one() for _ in range(THROWS)) if one and one[0] not in seen]
        if throws:
            denied = number % 2 == 0
            query, to, answer = min(throws, key=lambda one: (one[2].outcome is ProbeOutcome.TIMEOUT) != denied)
            seen.add(query)
            yield _document(f"{word}-{number + 1:02}", query, to, answer)


def throw(dice: Dice, cluster: ClusterView) -> _Thrown | None:
    """A connection, how a probe expresses its target, and its outcome; None if it cannot be probed."""
    clients = [Client(pod=key) for key, pod in cluster.pods.items() if not pod.spec.host_network]
    nodes = [Client(node=name) for name in cluster.nodes]
    client = dice.one(clients if clients and dice.chance(0.8) else nodes)
    servers = [pod for pod in cluster.pods.values() if pod.ports]
    if not servers:
        return None
    asked = _of_pod(dice, client, dice.one(servers), cluster)
    answer = oracle.predict(cluster, asked[0]) if asked else None
    return None if asked is None or answer is None else (*asked, answer)


def _throw_outside(dice: Dice, cluster: ClusterView) -> _Thrown | None:
    """From a Pod to a machine outside; where the underlay has routes to the Pods, also in the other direction."""
    pods = [pod for pod in cluster.pods.values() if not pod.spec.host_network]
    servers = [pod for pod in pods if pod.ports]
    if not servers:
        return None
    host = dice.one(list(cluster.hosts.values()))
    if cluster.routes_pods and dice.chance(0.5):
        asked = _of_pod(dice, Client(host=host.name), dice.one(servers), cluster)
    else:
        asked = _of_host(dice, Client(pod=dice.one(pods).key), host, dice.one(servers))
    answer = oracle.predict(cluster, asked[0]) if asked else None
    return None if asked is None or answer is None else (*asked, answer)


def _of_host(dice: Dice, client: Client, host: ExternalHost, pod: LabPod) -> tuple[Query, WrittenDocument]:
    """A port of the host, or of a Pod, because policies name those: the host refuses connections to these."""
    ports = [(port.protocol.value, port.port) for port in host.spec.ports]
    ports += [("TCP", port.container_port) for port in pod.ports if port.protocol.value == "TCP"]
    address, (protocol, number) = dice.one(list(host.addresses)), dice.one(ports)
    return Query(client, address, number, protocol), {"address": str(address), "port": number}


def _of_pod(dice: Dice, client: Client, pod: LabPod, cluster: ClusterView) -> tuple[Query, WrittenDocument] | None:
    node = cluster.nodes[pod.spec.node_name]
    if pod.spec.host_network:
        addresses = [one for one in (node.addresses.get(family_of(own)) for own in node.all_addresses) if one]
    else:
        addresses = [*pod.fixed_addresses]
    address, port, ping = dice.one(addresses), dice.one(pod.ports), dice.chance(0.1) and not pod.spec.host_network
    protocol = "ICMP" if ping else port.protocol.value
    number = 0 if ping else port.container_port
    to: WrittenDocument = {"pod": pod.key, **({} if ping else {"port": number}), "family": str(family_of(address))}
    return Query(client, address, number, protocol), to


def _document(name: str, query: Query, to: WrittenDocument, answer: Prediction) -> WrittenDocument:
    is_checked = answer.outcome is ProbeOutcome.CONNECTED and query.protocol != "ICMP"
    backends = sorted(answer.backends) if is_checked else []
    expect = nonempty({"outcome": answer.outcome.value, "backends": backends})
    return random_probes.written(
        f"{name}-{title(query, to)}", query, to, {"connections": 2, "expect": expect}, answer.why
    )


def title(query: Query, to: WrittenDocument) -> str:
    client = (query.client.pod or query.client.node or query.client.host).rpartition("/")[2]
    target = str(to.get("pod", "outside")).rpartition("/")[2]
    return f"{client}-to-{target}-{query.protocol.lower()}"
