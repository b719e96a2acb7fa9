"""Random Services: types, ports, addresses, policies, and slices that the controller did not make."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.drafts import (
    V4,
    Draft,
    EndpointDraft,
    EndpointState,
    NodeDraft,
    PodDraft,
    PortDraft,
    ServiceDraft,
    machine_address,
)
from windlass.lab.fuzz.features import Features
from windlass.model.families import Family

TYPES = {"ClusterIP": 0.3, "NodePort": 0.35, "LoadBalancer": 0.35}
AFFINITIES = (60, 600, 10800, 65535, 65536, 86400)
DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
FIRST_NODE_PORT = 30000
NODE_PORTS = 20  # reserved for each Service
NUMBERS = range(11, 20)  # the numbers of Services
STATES = {
    EndpointState.READY: 0.4,
    EndpointState.UNSAID: 0.25,
    EndpointState.NOT_READY: 0.1,
    EndpointState.DRAINING: 0.19,
    EndpointState.ENDED: 0.06,
}


def services(dice: Dice, draft: Draft, features: Features) -> tuple[ServiceDraft, ...]:
    """At most one has an address of a Node: two could conflict on a port."""
    made: list[ServiceDraft] = []
    for number in NUMBERS[: dice.number(4, 7)]:
        taken = any(uses_a_node(draft, other) for other in made)
        new = service(dice, number, draft, features - {"node-external-ips"} if taken else features)
        made.append(_sharing(dice, new, made))
    return tuple(made)


def _sharing(dice: Dice, new: ServiceDraft, others: list[ServiceDraft]) -> ServiceDraft:
    """Services may share the addresses of a load balancer, if their ports differ."""
    wanted = dice.chance(0.3)
    balanced = [s for s in others if "LoadBalancer" == new.type == s.type]
    for other in balanced:
        taken = {(p.port, p.protocol) for s in balanced if s.ingress == other.ingress for p in s.ports}
        if wanted and new.families == other.families and taken.isdisjoint((p.port, p.protocol) for p in new.ports):
            return replace(new, ingress=other.ingress)
    return new


def service(dice: Dice, number: int, draft: Draft, features: Features) -> ServiceDraft:
    app = dice.weighted({**dict.fromkeys(sorted({p.app for p in draft.pods if p.app}), 0.3), "nobody": 0.05})
    families = dice.one([draft.families, draft.families, draft.families[:1], draft.families[-1:]])
    kind = dice.weighted(TYPES)
    made = ServiceDraft(number, families, _ports(dice, app, number, draft.pods, features), app, kind)
    made = _addresses(dice, made, draft, features)
    made = replace(
        made,
        external_policy=dice.weighted({"": 0.3, "Cluster": 0.2, "Local": 0.5}),
        internal_policy=dice.weighted({"": 0.6, "Cluster": 0.2, "Local": 0.2}),
        publish_not_ready=dice.chance(0.1),
    )
    affine, seconds = dice.chance(0.22), dice.one(AFFINITIES)
    made = replace(made, affinity=seconds) if affine and "affinity" in features else made
    written, slices, distribution = dice.chance(0.45), endpoints(dice, app, draft, features), dice.one(DISTRIBUTIONS)
    if not written:
        return made
    hinted = any(endpoint.for_nodes or endpoint.for_zones for endpoint in slices)
    return replace(made, endpoints=slices, distribution=distribution if hinted else "")


def endpoints(dice: Dice, app: str, draft: Draft, features: Features) -> tuple[EndpointDraft, ...]:
    """Slices as another controller may write them: any Pods of the app, in any state, in several slices."""
    parts = dice.number(1, 3)
    hinting = dice.weighted({"": 0.4, "zones": 0.25, "nodes": 0.2, "both": 0.15})
    found = []
    for pod in draft.pods:
        state, part, twice = dice.weighted(STATES), dice.number(0, parts - 1), dice.chance(0.1)
        left_out, other = dice.chance(0.1), dice.chance(0.15) and "other-endpoints" in features
        if pod.app == app and not left_out:
            found.append(_hinted(dice, EndpointDraft(pod.key, state, part, twice, other), hinting, pod.node, draft))
    outside = dice.chance(0.3)
    answering = [host for host in draft.hosts if host.ports]
    if answering and outside:
        found.append(EndpointDraft(answering[0].name, EndpointState.READY))
    if "hints" not in features:
        found = [replace(endpoint, for_nodes=(), for_zones=()) for endpoint in found]
    return tuple(found)


def uses_a_node(draft: Draft, service: ServiceDraft) -> bool:
    """Whether one of its external addresses belongs to a Node."""
    owned = {address for node in draft.nodes for address in node.addresses}
    return not owned.isdisjoint(service.external_ips)


def _hinted(dice: Dice, endpoint: EndpointDraft, hinting: str, node: NodeDraft, draft: Draft) -> EndpointDraft:
    """Mostly for the endpoint's own Node and zone, as the controller writes hints; some random, some missing."""
    names = tuple(other.name for other in dice.some(draft.nodes, dice.number(1, 2)))
    zones = tuple(dice.some(("east", "west", "north"), dice.number(1, 2)))
    if dice.chance(0.6):
        names, zones = (node.name,), (node.zone or "north",)
    is_missing = dice.chance(0.06)
    return replace(
        endpoint,
        for_nodes=names if hinting in {"nodes", "both"} and not is_missing else (),
        for_zones=zones if hinting in {"zones", "both"} and not is_missing else (),
    )


# Ports ----------------------------------------------------------------------------------------------------------


def _ports(dice: Dice, app: str, number: int, pods: tuple[PodDraft, ...], features: Features) -> tuple[PortDraft, ...]:
    """One to three ports; a number may serve several protocols."""
    tcp = PortDraft("web", 80, "TCP", "http")
    shapes: dict[tuple[PortDraft, ...], float] = {
        (replace(tcp, name=dice.one(("", "web"))),): 0.3,
        (tcp, PortDraft("names", 53, "UDP", "dns")): 0.35,
        (PortDraft("tcp", 53, "TCP", "http"), PortDraft("udp", 53, "UDP", "dns")): 0.15,
        (tcp, PortDraft("also", 8080, "TCP", "http"), PortDraft("names", 5353, "UDP", "dns")): 0.1,
        (PortDraft("names", 53, "UDP", "dns"),): 0.1,
    }
    ports = dice.weighted(shapes)
    signals = dice.chance(0.3)
    if "udp" not in features:
        ports = tuple(port for port in ports if port.protocol != "UDP") or (tcp,)
    if "sctp" in features and signals:
        ports = (
            *(replace(port, name=port.name or "web") for port in ports),
            PortDraft("signals", 80, "SCTP", "signals"),
        )
    lost = dice.chance(0.03)
    if lost:
        ports = (*ports[:-1], replace(ports[-1], target="nothing"))  # no Pod has a port of this name
    shared, by_number = dice.chance(0.5), dice.chance(0.4)
    base, protocols = _first_node_port(number), [port.protocol for port in ports]
    ports = tuple(
        replace(port, node_port=base if shared and protocols.count(port.protocol) == 1 else base + 1 + i)
        for i, port in enumerate(ports)
    )
    return tuple(_numbered(port, app, pods) for port in ports) if by_number else ports


def _first_node_port(number: int) -> int:
    """The first of the NodePorts that are reserved for this Service."""
    return FIRST_NODE_PORT + NODE_PORTS * number


def _numbered(port: PortDraft, app: str, pods: tuple[PodDraft, ...]) -> PortDraft:
    """Uses the port number, if all Pods of the app have the same one, also future Pods."""
    numbers = {pod.port(port.target, port.protocol) for pod in pods if pod.app == app}
    return replace(port, target_number=numbers.pop()) if app == "red" and len(numbers) == 1 else port


def with_node_ports(made: ServiceDraft) -> ServiceDraft:
    """Gives each port without a NodePort one of those that are reserved for the Service."""
    used = {port.node_port for port in made.ports}
    first = _first_node_port(made.number)
    free = (number for number in range(first, first + NODE_PORTS) if number not in used)
    return replace(made, ports=tuple(p if p.node_port else replace(p, node_port=next(free)) for p in made.ports))


def without_node_ports(made: ServiceDraft) -> ServiceDraft:
    return replace(made, ports=tuple(replace(port, node_port=0) for port in made.ports))


# Addresses ------------------------------------------------------------------------------------------------------


def _addresses(dice: Dice, made: ServiceDraft, draft: Draft, features: Features) -> ServiceDraft:
    nodes = draft.nodes
    node, of_a_node, extern = dice.one(nodes), dice.chance(0.25), dice.chance(0.25)
    if extern:
        if of_a_node and "node-external-ips" in features:
            second = node.second and dice.chance(0.5)
            chosen = tuple(node.other(f) if second else node.main(f) for f in made.families)
        else:
            chosen = tuple(external_ip(f, made.number) for f in made.families)
        made = replace(made, external_ips=chosen)
    own = not dice.chance(0.2)
    made = replace(
        made, ingress=ingress(dice, made, draft), ranges=ranges(dice, made, nodes, features), own_node_ports=own
    )
    with_node_ports = made.type == "NodePort" or (made.type == "LoadBalancer" and own)
    return made if with_node_ports else without_node_ports(made)


def external_ip(family: Family, number: int) -> str:
    return f"203.0.113.{number}" if family is V4 else f"2001:db8:113::{number}"


def balancer_ip(family: Family, number: int) -> str:
    return f"198.51.100.{number}" if family is V4 else f"2001:db8:51::{number}"


def ingress(dice: Dice, made: ServiceDraft, draft: Draft) -> tuple[tuple[str, str], ...]:
    """Addresses outside, or in a segment of the Nodes; with ipMode Proxy, those of a host that listens, if any."""
    mode = dice.weighted({"": 0.5, "VIP": 0.35, "Proxy": 0.15})
    near, node = dice.chance(0.2), dice.one(draft.nodes)
    host = next((host for host in draft.hosts if host.ports), None)

    def address(family: Family) -> str:
        if mode == "Proxy":
            return host.address(family) if host else balancer_ip(family, made.number)
        return machine_address(family, node.segment, 100 + made.number) if near else balancer_ip(family, made.number)

    found = [(address(family), mode) for family in dice.some(made.families, len(made.families))]
    more = dice.weighted({"none": 0.7, "second": 0.15, "name": 0.1, "empty": 0.05})
    if more == "second":
        found.append((balancer_ip(made.families[0], made.number + 100), "VIP"))
    return () if more == "empty" else (("", ""), *found) if more == "name" else tuple(found)


def ranges(dice: Dice, made: ServiceDraft, nodes: tuple[NodeDraft, ...], features: Features) -> tuple[str, ...]:
    """Ranges for some of the clients: their segments, Pod networks, or everything; sometimes of only one family."""
    guarded, one_family = dice.chance(0.4), dice.chance(0.15)
    found: list[str] = []
    for family in made.families[:1] if one_family else made.families:
        bits = 24 if family is V4 else 64
        near = [ip_network(f"{node.main(family)}/{bits}", strict=False).with_prefixlen for node in nodes]
        near += [node.cidr(family) for node in nodes]
        far = ["192.0.2.0/24", "0.0.0.0/0"] if family is V4 else ["2001:db8:99::/64", "::/0"]
        found += dice.some(sorted(set(near)), dice.number(1, 2)) + ([dice.one(far)] if dice.chance(0.2) else [])
    if dice.chance(0.1):
        found[0] = f" {found[0]} "  # the API server accepts blanks around it
    return tuple(found) if guarded and "ranges" in features else ()
