"""Random probes with the predictions of the oracle, such that no verdict depends on chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from windlass.lab.fuzz import oracle, random_queries
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument, directive, nonempty
from windlass.lab.fuzz.eligible_endpoints import OracleEndpoint, endpoints
from windlass.lab.fuzz.oracle import PRESERVED, Prediction, Query
from windlass.lab.fuzz.random_queries import QueryProbe
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.model.families import Family, family_of

CERTAIN = 1e-7  # the highest accepted probability that an endpoint is missed by chance
MOST_CONNECTIONS = 65
THROWS = 8
PER_SECOND = 20  # new connections of a rate
LONGEST_GAP = 2000  # milliseconds, on a busy machine

ClientFlow = tuple[str, str, str]  # from a Node or a host outside, to a Service's port


@dataclass(slots=True)
class History:
    """The probes of earlier steps, as far as they affect later ones."""

    cells: Counter[tuple[object, ...]] = field(default_factory=Counter)
    datagrams: dict[ClientFlow, list[Prediction]] = field(default_factory=dict)
    pinned: dict[Query, str] = field(default_factory=dict)  # affinity: the backend that must answer
    may_answer: dict[ClientFlow, frozenset[str]] = field(default_factory=dict)  # affinity: all backends that may answer

    def note_possible_answers(self, flow: ClientFlow, backends: Iterable[str]) -> None:
        self.may_answer[flow] = self.may_answer.get(flow, frozenset()).union(backends)


def chosen(
    dice: Dice, cluster: ClusterView, wanted: int, services: Iterable[str], history: History, *, patient: bool
) -> Iterator[WrittenDocument]:
    """This many probes of these Services, each chosen among a few to differ from the earlier ones.

    `patient` allows probes that end in a timeout, which take three seconds.
    """
    picked: dict[Query, tuple[QueryProbe, Prediction]] = {}
    for _ in range(wanted):
        throws = [t for t in (throw(dice, cluster, services, history, patient=patient) for _ in range(THROWS)) if t]
        new = [thrown for thrown in throws if thrown[0].query not in picked]
        if new:
            one, answer = min(new, key=lambda thrown: _rank(cluster, thrown[0], thrown[1], history))
            history.cells[_cell(cluster, one, answer)] += 1
            history.datagrams.setdefault(_flow(cluster, one), []).append(answer)
            picked[one.query] = one, answer
    _note_affinity(cluster, picked.values(), history)
    for number, (query, (one, answer)) in enumerate(picked.items(), start=1):
        yield probe(dice, cluster, number, one, answer, history.pinned.get(query, ""))


def forget(history: History, cluster: ClusterView, *, remembers: bool) -> None:
    """Before a step: removes affinity to endpoints that may no longer be chosen, and all of it if a switch has lost
    its state.
    """
    for query in list(history.pinned):
        client = query.client
        there = (not client.pod or client.pod in cluster.pods) and (not client.node or client.node in cluster.nodes)
        answer = oracle.predict(cluster, query) if there else None
        if not remembers or answer is None or not answer.sticky or history.pinned[query] not in answer.backends:
            del history.pinned[query]


def _note_affinity(cluster: ClusterView, picked: Iterable[tuple[QueryProbe, Prediction]], history: History) -> None:
    """Note which backend must answer each client with affinity: the only eligible one, or the one that answered before.

    It is unknown if another backend may have answered at another address of the Service, perhaps in the same step.
    """
    sticky = [(asked, answer, _flow(cluster, asked)) for asked, answer in picked if answer.sticky]
    for asked, answer, flow in sticky:
        others = (other.backends for _, other, its in sticky if its == flow and other.backends != answer.backends)
        known = history.may_answer.get(flow, frozenset()).union(*others) & answer.backends
        if len(answer.backends) == 1:
            history.pinned[asked.query] = next(iter(answer.backends))
        elif asked.query in history.pinned and known != {history.pinned[asked.query]}:
            del history.pinned[asked.query]
    for asked, answer, flow in sticky:
        pinned = history.pinned.get(asked.query)
        history.note_possible_answers(flow, [pinned] if pinned else answer.backends)


def held(cluster: ClusterView, number: int, asked: QueryProbe, answer: Prediction, history: History) -> WrittenDocument:
    """Any eligible backend may have affinity with the client from then on."""
    history.note_possible_answers(_flow(cluster, asked), answer.backends)
    expect = {"outcome": "Connected", "maxGapMilliseconds": LONGEST_GAP}
    how: WrittenDocument = {"hold": True, "expect": expect}
    return written(f"held-{number}-{_title(asked)}", asked.query, asked.to, how, "the connection must last")


def rated(number: int, asked: QueryProbe) -> WrittenDocument:
    how: WrittenDocument = {"rate": PER_SECOND, "expect": {"outcome": "Connected", "failures": 0}}
    why = "an endpoint can answer at any time"
    return written(f"rated-{number}-{_title(asked)}", asked.query, asked.to, how, why)


def probe(
    dice: Dice, cluster: ClusterView, number: int, asked: QueryProbe, answer: Prediction, pinned: str = ""
) -> WrittenDocument:
    """`pinned`: the backend that must answer by affinity, if it is known."""
    name = f"{number:02}-{_title(asked)}"
    how: WrittenDocument = {}
    expect: WrittenDocument = {"outcome": answer.outcome.value}
    if answer.outcome is not ProbeOutcome.CONNECTED:
        quick = 3 if asked.query.protocol == "TCP" and answer.outcome is ProbeOutcome.REFUSED else 1
        return written(name, asked.query, asked.to, {"connections": quick, "expect": expect}, answer.why)
    backends = [pinned] if pinned else sorted(answer.backends)
    enough = connections(len(backends))
    if answer.sticky:
        expect |= {"sticky": True, **({"backends": backends} if pinned else {})}
        how["connections"] = 12
    elif enough <= MOST_CONNECTIONS:
        expect["backends"] = backends
        how["connections"] = enough
    heavy = dice.chance(0.06)
    if heavy:
        how |= {"bytes": 70000, **({"connections": 3} if len(backends) == 1 else {})}
    if len(answer.seen) == 1:
        expect["clientAddress"] = _word(cluster, asked, next(iter(answer.seen)))
    return written(name, asked.query, asked.to, {**how, "expect": expect}, answer.why)


def connections(backends: int) -> int:
    """How many connections choose each of the backends at least once, with near certainty."""
    tries = 4
    while backends > 1 and backends * (1 - 1 / backends) ** tries > CERTAIN:
        tries += 1
    return tries


# Choice of probes -----------------------------------------------------------------------------------------------


def throw(
    dice: Dice, cluster: ClusterView, services: Iterable[str], history: History, *, patient: bool
) -> tuple[QueryProbe, Prediction] | None:
    asked = random_queries.throw(dice, cluster, services)
    answer = oracle.predict(cluster, asked.query) if asked else None
    if asked is None or answer is None or (answer.outcome is ProbeOutcome.TIMEOUT and not patient):
        return None
    if asked.query.protocol == "UDP" and not _is_fresh(cluster, asked, answer, history):
        return None
    return None if _is_beyond_windows(cluster, asked, answer) else (asked, answer)


def _is_beyond_windows(cluster: ClusterView, asked: QueryProbe, answer: Prediction) -> bool:
    """A Windows host cannot send a reply by the NIC of the request: with policy Local, an endpoint on the host does
    not serve clients that come by the second NIC or are on its segment.
    """
    entry, client = cluster.nodes.get(_entry(cluster, asked)), asked.query.client
    if entry is None or not entry.is_windows or oracle.home_of(cluster, client) == entry.name:
        return False
    others = [address for address in entry.all_addresses if address != entry.addresses.get(asked.query.family)]
    sources = cluster.hosts[client.host].addresses if client.host else cluster.nodes[asked.entry].all_addresses
    by_second = asked.query.address in others or any(oracle.on_one_wire(others, source) for source in sources)
    return by_second and any(endpoint.host == entry.name for endpoint in answer.endpoints)


def _entry(cluster: ClusterView, asked: QueryProbe) -> str:
    """The Node that a packet from outside actually arrives at."""
    owner = next((n.name for n in cluster.nodes.values() if asked.query.address in n.all_addresses), "")
    return owner or asked.query.via or asked.entry


def _is_fresh(cluster: ClusterView, asked: QueryProbe, answer: Prediction, history: History) -> bool:
    """A datagram from a port that was used before may belong to an old conntrack entry, which stays with its endpoint
    while that serves. If that would give another answer than a new entry, the outcome is unknown.
    """
    for before in history.datagrams.get(_flow(cluster, asked), ()):
        same = (before.outcome, before.backends, before.seen) == (answer.outcome, answer.backends, answer.seen)
        if not same and any(_serves(cluster, asked, endpoint) for endpoint in before.endpoints):
            return False
    return True


def _serves(cluster: ClusterView, asked: QueryProbe, endpoint: OracleEndpoint) -> bool:
    """Whether it is still a serving endpoint of the Service."""
    service = cluster.services.get(asked.service)
    if service is None:
        return False
    return any(
        known.backend == endpoint.backend and known.stays
        for port in service.spec.ports
        for family in map(family_of, service.cluster_ips)
        for known in endpoints(cluster, service, port, family)
    )


def _flow(cluster: ClusterView, asked: QueryProbe) -> ClientFlow:
    """Clients of one Node may share conntrack entries at another Node: they have the same source address."""
    client = asked.query.client
    return oracle.home_of(cluster, client) or client.host, asked.service, asked.port


def _rank(cluster: ClusterView, asked: QueryProbe, answer: Prediction, history: History) -> int:
    """The sort key of a probe: new kinds come first, and those for which the choice of endpoints is limited."""
    is_informative = answer.narrowed or answer.outcome is ProbeOutcome.TIMEOUT
    return history.cells[_cell(cluster, asked, answer)] - 2 * is_informative


def _cell(cluster: ClusterView, asked: QueryProbe, answer: Prediction) -> tuple[object, ...]:
    """The properties by which probes count as different."""
    client, home = asked.query.client, oracle.home_of(cluster, asked.query.client)
    places = frozenset((e.place, e.node == asked.entry, e.backend == client.pod, e.draining) for e in answer.endpoints)
    kind = "pod" if client.pod else "node" if client.node else "host"
    seen = "".join(sorted(answer.seen)) == PRESERVED
    at_home = home == asked.entry and home in asked.where
    return kind, asked.kind, asked.where.partition("-of-")[0], at_home, answer.outcome, places, seen, answer.sticky


# Documents --------------------------------------------------------------------------------------------------------


def _word(cluster: ClusterView, asked: QueryProbe, seen: str) -> str:
    """`Gateway` or `Node` for the addresses of the Node where the packet enters, as the scenario format defines it."""
    node = cluster.nodes.get(asked.entry)
    family = asked.query.family
    if node and seen == str(node.gateway(family)):
        return "Gateway"
    return "Node" if node and seen == str(node.addresses.get(family)) else seen


def _title(asked: QueryProbe) -> str:
    client = asked.query.client
    name = (client.pod.partition("/")[2] or client.node or client.host).lower()
    service = asked.service.partition("/")[2] or "nothing"
    return f"{name}-to-{service}-{asked.port}-{asked.where}"


def written(name: str, query: Query, to: WrittenDocument, how: WrittenDocument, why: str) -> WrittenDocument:
    """The Probe of a query; `to` is its destination in words, `how` its further fields."""
    client = query.client
    source = nonempty({"pod": client.pod, "node": client.node, "externalHost": client.host})
    protocol = {} if query.protocol == "TCP" else {"protocol": query.protocol}
    name = f"{name}-ipv6" if query.family is Family.IPV6 else name
    return directive("Probe", name, {"from": source, "to": to, **protocol, **how}, why)
