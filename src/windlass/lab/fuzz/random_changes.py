"""Random changes of a cluster: endpoints, Pods and Services appear, disappear and change. Each gives a new draft."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from windlass.lab.fuzz import random_clusters, random_services
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.drafts import Draft, EndpointDraft, EndpointState, NodeDraft, PodDraft, ServiceDraft
from windlass.lab.fuzz.features import Features

Change = Callable[[Dice, Draft, Features], tuple[Draft, str]]  # with a description; empty: nothing changed


def changed(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, list[str]]:
    """One to three changes of different kinds."""
    words: list[str] = []
    for change in dict.fromkeys(dice.weighted(_CHANGES) for _ in range(dice.number(1, 3))):
        draft, said = change(dice, draft, features)
        words += [said] if said else []
    return draft, words


# Pods and endpoints ---------------------------------------------------------------------------------------------


def _pod_state(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    pod = dice.one([pod for pod in draft.pods if pod.app] or draft.pods)
    if not pod.app:
        return draft, ""
    state = dice.one([s for s in EndpointState if s not in {EndpointState.UNSAID, pod.state}])
    pods = tuple(replace(p, state=state) if p == pod else p for p in draft.pods)
    return replace(draft, pods=pods), f"{pod.name} is now {state.value}"


def _remove_pod(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    serving = [pod for pod in draft.pods if pod.app]
    if len(serving) < 2:
        return draft, ""
    gone = dice.one(serving)
    return _without(draft, {gone.key}), f"{gone.name} is removed"


def _without(draft: Draft, gone: Container[str]) -> Draft:
    """Removes Pods, also from the slices that the draft itself writes."""

    def left(service: ServiceDraft) -> ServiceDraft:
        kept = tuple(e for e in service.endpoints or () if e.backend not in gone)
        return service if service.endpoints is None else replace(service, endpoints=kept)

    pods = tuple(pod for pod in draft.pods if pod.key not in gone)
    return replace(draft, pods=pods, services=tuple(map(left, draft.services)))


def _add_pod(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    """Adds a Pod, also to some of the slices that the draft itself writes."""
    app, node, on_the_host = dice.one(random_clusters.APPS), dice.one(draft.nodes), dice.chance(0.25)
    host_network = on_the_host and random_clusters.free(draft.pods, app, node)
    new = _new_pod(dice, draft, app, node, features, host_network=host_network)

    def joined(service: ServiceDraft) -> ServiceDraft:
        wanted = dice.chance(0.7)
        if service.endpoints is None or service.app != app or not wanted:
            return service
        return replace(service, endpoints=(*service.endpoints, EndpointDraft(new.key, EndpointState.READY, part=1)))

    services = tuple(map(joined, draft.services))
    return replace(draft, pods=(*draft.pods, new), services=services), f"{new.name} is added"


def _new_pod(
    dice: Dice, draft: Draft, app: str, node: NodeDraft, features: Features, *, host_network: bool
) -> PodDraft:
    number = max(pod.number for pod in draft.pods) + 1
    made = random_clusters.pod(dice, app, number, node, features, host_network=host_network)
    return replace(made, state=EndpointState.READY)


def _slices(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    """Replaces the slices that the draft itself writes for a Service."""
    written = [service for service in draft.services if service.endpoints is not None]
    if not written:
        return draft, ""
    service = dice.one(written)
    new = random_services.endpoints(dice, service.app, draft, features)
    return _with(draft, replace(service, endpoints=new)), f"{service.name} has other slices"


# Nodes ----------------------------------------------------------------------------------------------------------


def _node(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    """A Node joins with a Pod, or the last Node leaves with all its Pods."""
    joins, like, app = dice.chance(0.5), dice.one(draft.nodes), dice.one(random_clusters.APPS)
    last = draft.nodes[-1]
    if "nodes" not in features:
        return draft, ""
    if joins or len(draft.nodes) < 3:
        node = replace(like, number=last.number + 1, second=0)
        pod = _new_pod(dice, draft, app, node, features, host_network=False)
        return replace(draft, nodes=(*draft.nodes, node), pods=(*draft.pods, pod)), f"{node.name} joins with {pod.name}"
    left = _without(draft, {pod.key for pod in draft.pods if pod.node == last})
    if not left.pods:
        return draft, ""
    services = tuple(
        replace(s, external_ips=()) if not set(s.external_ips).isdisjoint(last.addresses) else s for s in left.services
    )
    return replace(left, nodes=left.nodes[:-1], services=services), f"{last.name} leaves"


# Services -------------------------------------------------------------------------------------------------------


def _policy(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    service = dice.one(draft.services)
    if service.outside and dice.chance(0.7):
        policy = "Cluster" if service.external_policy == "Local" else "Local"
        said = f"{service.name} has externalTrafficPolicy {policy}"
        return _with(draft, replace(service, external_policy=policy)), said
    policy = "Cluster" if service.internal_policy == "Local" else "Local"
    return _with(draft, replace(service, internal_policy=policy)), f"{service.name} has internalTrafficPolicy {policy}"


def _affinity(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    service, seconds = dice.one(draft.services), dice.one(random_services.AFFINITIES)
    if "affinity" not in features:
        return draft, ""
    seconds = 0 if service.affinity else seconds
    return _with(draft, replace(service, affinity=seconds)), f"{service.name} has affinity for {seconds} s"


def _type(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    service = dice.one(draft.services)
    kind = dice.one([kind for kind in random_services.TYPES if kind != service.type])
    new = replace(service, type=kind, own_node_ports=True)
    new = random_services.without_node_ports(new) if kind == "ClusterIP" else random_services.with_node_ports(new)
    new = replace(new, ingress=random_services.ingress(dice, new, draft)) if kind == "LoadBalancer" else new
    return _with(draft, new), f"{service.name} is now a {kind}"


def _addresses(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    service = dice.one(draft.services)
    extern = tuple(random_services.external_ip(family, service.number) for family in service.families)
    new = replace(
        service,
        external_ips=() if service.external_ips else extern,
        ingress=random_services.ingress(dice, service, draft),
        ranges=random_services.ranges(dice, service, draft.nodes, features),
    )
    return _with(draft, new), f"{service.name} has other addresses and ranges"


def _ports(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    """Changes the ports to numbers that no other Service has."""
    service = dice.one(draft.services)
    step = dice.one((100, 200, 300))
    moved = tuple(replace(port, port=port.port + step, node_port=_moved(port.node_port)) for port in service.ports)
    return _with(draft, replace(service, ports=moved)), f"the ports of {service.name} have other numbers"


def _moved(node_port: int) -> int:
    """Another of the NodePorts that are reserved for the Service."""
    own = node_port % random_services.NODE_PORTS
    return node_port - own + (own + 7) % random_services.NODE_PORTS if node_port else 0


def _remove_service(dice: Dice, draft: Draft, _: Features) -> tuple[Draft, str]:
    if len(draft.services) < 3:
        return draft, ""
    gone = dice.one(draft.services)
    return replace(draft, services=tuple(s for s in draft.services if s != gone)), f"{gone.name} is removed"


def _add_service(dice: Dice, draft: Draft, features: Features) -> tuple[Draft, str]:
    """The new Service may have the name and addresses of a removed one."""
    unused = sorted(set(random_services.NUMBERS) - {service.number for service in draft.services})
    if not unused:
        return draft, ""
    new = random_services.service(dice, dice.one(unused), draft, features - {"node-external-ips"})
    return replace(draft, services=(*draft.services, new)), f"{new.name} is added"


def _with(draft: Draft, new: ServiceDraft) -> Draft:
    return replace(draft, services=tuple(new if s.name == new.name else s for s in draft.services))


_CHANGES: dict[Change, float] = {
    _pod_state: 3,
    _remove_pod: 2,
    _add_pod: 2,
    _slices: 3,
    _node: 0.7,
    _policy: 3,
    _affinity: 1,
    _type: 2,
    _addresses: 1.5,
    _ports: 1,
    _remove_service: 1.5,
    _add_service: 1.5,
}
