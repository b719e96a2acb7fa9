"""Decides what one Node serves of a Service and its EndpointSlices, by the rules of kube-proxy. Pure.

A part that cannot be served is reported as a problem, and the rest is served. Conflicts between Services are settled in
`claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from windlass.cluster import objects
from windlass.cluster.addresses import complaint, read_address, read_network
from windlass.cluster.endpoints import ANY_PORT, FAMILIES, PROTOCOLS, ServingNode, rows_by_port, usable
from windlass.cluster.objects import HEADLESS_LABEL, PROXY_NAME_LABEL, EndpointSlice, Problem, ServiceCIDR, ServiceSpec
from windlass.model.families import IPAddress, IPNetwork
from windlass.model.nodes import OperatingSystem
from windlass.model.services import Frontend, Protocol, Reach, ServedPort, ServedService

TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
AFFINITY_SECONDS = 10800
AFFINITY_RANGE = range(1, 86401)
REST = "the rest of the Service is served"

Sources = tuple[IPNetwork, ...] | None  # None: all clients


def serve(
    service: objects.Service, slices: Iterable[EndpointSlice], node: ServingNode
) -> tuple[ServedService | None, list[Problem]]:
    """The Service as this Node serves it; None if it is not for a proxy, or cannot be served at all."""
    spec = service.spec or ServiceSpec()
    if _is_for_others(service, spec):
        return None, []
    report = _ServiceProblems(service)
    terms = _terms(service, spec, node, report)
    if not terms.families:
        return None, report.problems
    listed = _listed(spec, terms.type, node, report)
    endpoints, slice_problems = rows_by_port(slices, terms.families, node)
    ports: list[ServedPort] = []
    ready_local = 0
    for family in terms.families:
        ready: set[bytes] = set()
        for port, protocol, node_port in listed:
            name = port.name or ""
            rows = endpoints.get((family, name, port.protocol or "TCP"), [])
            choice = usable(rows, node, local=terms.internal_local or terms.external_local)
            ports.append(
                ServedPort(
                    name,
                    protocol,
                    FAMILIES[family],
                    _frontends(port.port, node_port, family, terms),
                    choice.cluster,
                    choice.local,
                    bool(choice.cluster),
                    terms.affinity_seconds,
                    choice.serving,
                )
            )
            if terms.health_check_port:
                ready.update(endpoint.packed for endpoint in choice.ready_local)
        ready_local = max(ready_local, len(ready))  # not the sum: a Pod with two families counts once
    return ServedService(
        service.metadata.namespace or "default",
        service.metadata.name,
        tuple(ports),
        tuple([address for address in terms.families.values() if address]),
        terms.health_check_port,
        ready_local,
    ), report.problems + slice_problems


def service_networks(cidrs: Mapping[str, ServiceCIDR]) -> tuple[tuple[IPNetwork, ...], list[Problem]]:
    """The networks of ClusterIPs, as far as ServiceCIDRs name them."""
    networks: dict[IPNetwork, None] = {}
    problems = []
    for cidr in cidrs.values():
        for index, text in enumerate((cidr.spec and cidr.spec.cidrs) or ()):
            network = read_network(text)
            if network is None:
                sentence = f"spec.cidrs[{index}]: {text!r} is not a CIDR; the others are used"
                problems.append(Problem.of(cidr, sentence))
            else:
                networks[network] = None
    return tuple(networks), problems


class _ServiceProblems:
    """Collects the problems of one Service."""

    def __init__(self, service: objects.Service) -> None:
        self._service = service
        self.problems: list[Problem] = []

    def __call__(self, sentence: str, now: str = REST) -> None:
        self.problems.append(Problem.of(self._service, f"{sentence}; {now}"))


def _is_for_others(service: objects.Service, spec: ServiceSpec) -> bool:
    labels = service.metadata.labels
    return (
        spec.type == "ExternalName"
        or spec.cluster_ip == "None"
        or (spec.cluster_ips is not None and "None" in spec.cluster_ips)
        or (labels is not None and (PROXY_NAME_LABEL in labels or HEADLESS_LABEL in labels))
    )


class _Terms(Struct, frozen=True, gc=False):
    """What all ports of a Service have in common."""

    families: Mapping[str, IPAddress | None]  # the families that this Node has as well, each with the ClusterIP
    type: str
    external: Mapping[str, Mapping[IPAddress, Sources]]  # load balancer IPs and external IPs, with allowed clients
    internal_local: bool
    external_local: bool
    affinity_seconds: int
    health_check_port: int


def _terms(service: objects.Service, spec: ServiceSpec, node: ServingNode, report: _ServiceProblems) -> _Terms:
    kind = spec.type or TYPES[0]
    if kind not in TYPES:
        report(f"spec.type: {kind!r} is not one of {', '.join(TYPES)}", f"it is served as {TYPES[0]}")
        kind = TYPES[0]
    families = _families(spec, node, report)
    external_local = _is_local(spec.external_traffic_policy, "externalTrafficPolicy", report)
    return _Terms(
        families,
        kind,
        _external(service, spec, families, node, report) if spec.external_ips or kind == "LoadBalancer" else {},
        _is_local(spec.internal_traffic_policy, "internalTrafficPolicy", report),
        external_local,
        _affinity_seconds(spec, report),
        _health_check_port(spec, node, report) if kind == "LoadBalancer" and external_local else 0,
    )


def _families(spec: ServiceSpec, node: ServingNode, report: _ServiceProblems) -> dict[str, IPAddress | None]:
    """None for an unusable ClusterIP: the Service still has the family, and may have other frontends in it."""
    texts = spec.cluster_ips or ((spec.cluster_ip,) if spec.cluster_ip else ())
    stated = spec.ip_families or ()
    found: dict[str, IPAddress | None] = {}
    for index, text in enumerate(texts):
        family = stated[index] if index < len(stated) and stated[index] in FAMILIES else _family_name(text)
        if family in found:
            report(f"spec.clusterIPs[{index}]: {text} is the second {family} address, one is used")
        elif FAMILIES[family] in node.families:
            found[family] = _address(text, "spec.clusterIPs[{}]", index, node, report)
            if found[family] and family != _family_name(text):
                report(f"spec.clusterIPs[{index}]: {text} is not {family}, but spec.ipFamilies[{index}] is")
                found[family] = None
    if not texts:
        report("spec.clusterIPs is empty: the API server gives each Service one", "it is not served until then")
    elif not found:
        own = " and ".join(map(str, node.families))
        report(f"spec.clusterIPs: {', '.join(texts)}: this Node has {own} only", "it is not served here")
    return found


def _family_name(text: str) -> str:
    return "IPv6" if ":" in text else "IPv4"


def _address(text: str, field: str, index: int, node: ServingNode, report: _ServiceProblems) -> IPAddress | None:
    read = read_address(text)
    if read is None:
        report(f"{field.format(index)}: {complaint(text)}")
        return None
    for cidr in node.pod_cidrs.values():
        if read[1] in cidr:
            report(f"{field.format(index)}: {text} is inside {cidr}, the PodCIDR of this Node")
            return None
    return read[1]


def _external(
    service: objects.Service, spec: ServiceSpec, families: Iterable[str], node: ServingNode, report: _ServiceProblems
) -> dict[str, dict[IPAddress, Sources]]:
    """An external IP that is also a load balancer IP keeps the source ranges: it must not be open to all by mistake."""
    found: dict[str, dict[IPAddress, Sources]] = {family: {} for family in families}
    if spec.type == "LoadBalancer":
        ranges = _ranges(spec, report)
        for index, text in _ingress(service):
            address = _address(text, "status.loadBalancer.ingress[{}].ip", index, node, report)
            if address and _family_name(text) in found:  # otherwise the load balancer translates to the other family
                found[_family_name(text)][address] = _of_family(ranges, address)
    for index, text in enumerate(spec.external_ips or ()):
        address = _address(text, "spec.externalIPs[{}]", index, node, report)
        if address and _family_name(text) in found:
            found[_family_name(text)].setdefault(address, None)
        elif address and FAMILIES[_family_name(text)] in node.families:
            report(f"spec.externalIPs[{index}]: {text} is not of a family of the Service")
    return found


def _ingress(service: objects.Service) -> Iterator[tuple[int, str]]:
    """The addresses that load balancers leave in the packet as its destination."""
    balancer = service.status and service.status.load_balancer
    for index, ingress in enumerate((balancer and balancer.ingress) or ()):
        if ingress.ip and ingress.ip_mode in {None, "VIP"}:
            yield index, ingress.ip


def _ranges(spec: ServiceSpec, report: _ServiceProblems) -> Sources:
    """None if the Service has none. A malformed range admits no client, and leaves the other ranges in force."""
    if not spec.load_balancer_source_ranges:
        return None
    found: dict[IPNetwork, None] = {}
    for index, text in enumerate(spec.load_balancer_source_ranges):
        network = read_network(text)
        if network is None:
            report(f"spec.loadBalancerSourceRanges[{index}]: {text!r} is not a CIDR", "it admits no client")
        else:
            found[network] = None
    return tuple(found)


def _of_family(ranges: Sources, address: IPAddress) -> Sources:
    """Like kube-proxy: if all ranges are of the other family, every client of this family is allowed."""
    if not ranges:
        return ranges
    return tuple(network for network in ranges if network.version == address.version) or None


def _is_local(policy: str | None, field: str, report: _ServiceProblems) -> bool:
    if policy not in {None, "", "Cluster", "Local"}:
        report(f"spec.{field}: {policy!r} is neither Cluster nor Local", "it counts as Cluster")
    return policy == "Local"


def _affinity_seconds(spec: ServiceSpec, report: _ServiceProblems) -> int:
    if spec.session_affinity in {None, "", "None"}:
        return 0
    if spec.session_affinity != "ClientIP":
        report(f"spec.sessionAffinity: {spec.session_affinity!r} is neither ClientIP nor None", "it counts as None")
        return 0
    config = spec.session_affinity_config.client_ip if spec.session_affinity_config else None
    if config is None or config.timeout_seconds is None:
        return AFFINITY_SECONDS
    seconds = min(max(config.timeout_seconds, AFFINITY_RANGE[0]), AFFINITY_RANGE[-1])
    if seconds != config.timeout_seconds:
        what = _outside(config.timeout_seconds, AFFINITY_RANGE)
        report(f"spec.sessionAffinityConfig.clientIP.timeoutSeconds: {what}", f"it counts as {seconds}")
    return seconds


def _health_check_port(spec: ServiceSpec, node: ServingNode, report: _ServiceProblems) -> int:
    port = spec.health_check_node_port or 0
    unanswered = "its health checks get no answer"
    if port and port not in node.node_ports:
        report(f"spec.healthCheckNodePort: {_outside(port, node.node_ports)}", unanswered)
    elif port and any(port == one.node_port and one.protocol in {None, "TCP"} for one in spec.ports or ()):
        report(f"spec.healthCheckNodePort: {port} is a NodePort of the Service itself", unanswered)
    else:
        return port
    return 0


def _outside(number: int, allowed: range) -> str:
    return f"{number} is outside {allowed[0]}-{allowed[-1]}"


def _listed(
    spec: ServiceSpec, kind: str, node: ServingNode, report: _ServiceProblems
) -> list[tuple[objects.ServicePort, Protocol, int]]:
    """The ports that can be served, each with its protocol and its NodePort, which is 0 if it has none."""
    found: list[tuple[objects.ServicePort, Protocol, int]] = []
    names: set[tuple[str, str]] = set()
    numbers: set[tuple[int, str]] = set()
    node_ports: set[tuple[int, str]] = set()
    for index, port in enumerate(spec.ports or ()):
        transport = port.protocol or "TCP"
        name, number = (port.name or "", transport), (port.port, transport)
        if transport not in PROTOCOLS:
            report(f"spec.ports[{index}].protocol: {transport!r} is not one of {', '.join(PROTOCOLS)}")
        elif transport == "SCTP" and node.os is OperatingSystem.WINDOWS:
            report(f"spec.ports[{index}].protocol: the datapath of a Windows Node drops SCTP")
        elif port.port not in ANY_PORT:
            report(f"spec.ports[{index}].port: {_outside(port.port, ANY_PORT)}")
        elif number in numbers:
            report(f"spec.ports[{index}].port: {port.port}/{transport} is listed twice, the first is used")
        elif name in names:
            report(f"spec.ports[{index}].name: {port.name or ''!r} is listed twice for {transport}, the first is used")
        else:
            names.add(name)
            numbers.add(number)
            found.append((port, PROTOCOLS[transport], _node_port(index, port, kind, node, node_ports, report)))
    return found


def _node_port(
    index: int,
    port: objects.ServicePort,
    kind: str,
    node: ServingNode,
    taken: set[tuple[int, str]],
    report: _ServiceProblems,
) -> int:
    if not port.node_port or kind == TYPES[0]:
        return 0
    claim = port.node_port, port.protocol or "TCP"
    if port.node_port not in node.node_ports:
        report(f"spec.ports[{index}].nodePort: {_outside(port.node_port, node.node_ports)}")
    elif claim in taken:
        report(f"spec.ports[{index}].nodePort: {claim[0]}/{claim[1]} is listed twice, the first is used")
    else:
        taken.add(claim)
        return port.node_port
    return 0


def _frontends(number: int, node_port: int, family: str, terms: _Terms) -> tuple[Frontend, ...]:
    cluster_ip = terms.families[family]
    found = [Frontend(Reach.CLUSTER_IP, cluster_ip, number, terms.internal_local)] if cluster_ip else []
    if node_port:
        found.append(Frontend(Reach.NODE_PORT, None, node_port, terms.external_local))
    if terms.external:
        for address, sources in terms.external[family].items():
            if address != cluster_ip:
                found.append(Frontend(Reach.EXTERNAL, address, number, terms.external_local, sources))
    return tuple(found)
