"""Random NetworkPolicies and ClusterNetworkPolicies, such that most of their rules matter for some Pods.

They select Pods by the labels `app` and `tier`, and namespaces by `team` and by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument, manifest
from windlass.lab.fuzz.drafts import NAMESPACE, NAMESPACES, TIERS, Draft
from windlass.model.families import Family
from windlass.policy.directories import NAME_LABEL

TEAMS = ("a", "b")
APPS = ("red", "green", "blue")
SPACES = tuple(sorted({NAMESPACE, *NAMESPACES.values()}))
WIDTHS = {Family.IPV4: 32, Family.IPV6: 128}
PORT_NAMES = ("http", "dns", "signals", "absent")


def added(dice: Dice, draft: Draft) -> Draft:
    """The cluster with labels and up to seven policies."""
    pods = tuple(replace(pod, tier=dice.one(TIERS)) for pod in draft.pods)
    teams = tuple((space, dice.one(TEAMS)) for space in SPACES)
    draft = replace(draft, pods=pods, teams=teams)
    for _ in range(dice.number(1, 4)):
        draft = _with(draft, network_policy(dice, draft))
    for _ in range(dice.weighted({0: 0.3, 1: 0.3, 2: 0.25, 3: 0.15})):
        draft = _with(draft, cluster_network_policy(dice, draft))
    return replace(draft, counts_rules=dice.chance(0.5))


def changed(dice: Dice, draft: Draft) -> tuple[Draft, list[str]]:
    """One to three changes of policies and labels; none if the cluster has no policies."""
    words: list[str] = []
    for _ in range(dice.number(1, 3) if draft.teams else 0):
        draft, said = dice.weighted(_CHANGES)(dice, draft)
        words += [said] if said else []
    return draft, words


def network_policy(dice: Dice, draft: Draft) -> WrittenDocument:
    space = dice.one(SPACES)
    types = dice.weighted({("Ingress",): 0.45, ("Egress",): 0.2, ("Ingress", "Egress"): 0.25, (): 0.1})
    spec: WrittenDocument = {"podSelector": _pods(dice), **({"policyTypes": list(types)} if types else {})}
    for word, field, peers in (("Ingress", "ingress", "from"), ("Egress", "egress", "to")):
        if word in types or dice.chance(0.1):
            spec[field] = [_allow_rule(dice, draft, peers) for _ in range(dice.number(0, 3))]
    name = _unused_name(draft, "np")
    metadata = {"name": name, "namespace": space}
    return manifest("NetworkPolicy", metadata, api_version="networking.k8s.io/v1", spec=spec)


def cluster_network_policy(dice: Dice, draft: Draft) -> WrittenDocument:
    spec: WrittenDocument = {
        "tier": dice.one(("Admin", "Admin", "Baseline")),
        "priority": dice.number(0, 3),
        "subject": {"namespaces": _spaces(dice)} if dice.chance(0.4) else {"pods": _pods_of_spaces(dice)},
    }
    fields = dice.weighted({("ingress",): 0.45, ("egress",): 0.35, ("ingress", "egress"): 0.2})
    for field in fields:
        spec[field] = [_tier_rule(dice, draft, field) for _ in range(dice.number(1, 3))]
    metadata = {"name": _unused_name(draft, "cnp")}
    return manifest("ClusterNetworkPolicy", metadata, api_version="policy.networking.k8s.io/v1alpha2", spec=spec)


# --- rules ------------------------------------------------------------------------------------------------------------


def _allow_rule(dice: Dice, draft: Draft, field: str) -> WrittenDocument:
    rule: WrittenDocument = {}
    if dice.chance(0.8):
        rule[field] = [_peer(dice, draft) for _ in range(dice.number(1, 3))]
    if dice.chance(0.5):
        rule["ports"] = [_port(dice, draft) for _ in range(dice.number(1, 2))]
    return rule


def _peer(dice: Dice, draft: Draft) -> WrittenDocument:
    match dice.weighted({"pods": 0.35, "spaces": 0.2, "both": 0.2, "block": 0.25}):
        case "pods":
            return {"podSelector": _pods(dice)}
        case "spaces":
            return {"namespaceSelector": _spaces(dice)}
        case "both":
            return {"namespaceSelector": _spaces(dice), "podSelector": _pods(dice)}
        case _:
            return {"ipBlock": _block(dice, draft)}


def _port(dice: Dice, draft: Draft) -> WrittenDocument:
    protocol, number = _some_port(dice, draft)
    match dice.weighted({"number": 0.4, "range": 0.2, "name": 0.25, "all": 0.15}):
        case "number":
            return {"protocol": protocol, "port": number}
        case "range":
            return {"protocol": protocol, "port": number - dice.number(0, 120), "endPort": number + dice.number(0, 120)}
        case "name":
            return {"protocol": protocol, "port": dice.one(PORT_NAMES)}
        case _:
            return {"protocol": protocol}


def _tier_rule(dice: Dice, draft: Draft, field: str) -> WrittenDocument:
    peers = [_tier_peer(dice, draft, field) for _ in range(dice.number(1, 2))]
    rule: WrittenDocument = {
        "action": dice.one(("Accept", "Deny", "Pass")),
        "from" if field == "ingress" else "to": peers,
    }
    if dice.chance(0.4):
        rule["protocols"] = [_protocol(dice, draft) for _ in range(dice.number(1, 2))]
    return rule


def _tier_peer(dice: Dice, draft: Draft, field: str) -> WrittenDocument:
    kinds = {"namespaces": 0.35, "pods": 0.35}
    kinds |= {"nodes": 0.12, "networks": 0.15, "domainNames": 0.03} if field == "egress" else {}
    match dice.weighted(kinds):
        case "namespaces":
            return {"namespaces": _spaces(dice)}
        case "pods":
            return {"pods": _pods_of_spaces(dice)}
        case "nodes":
            zone = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]}
            return {"nodes": dice.one(({}, zone))}
        case "networks":
            return {"networks": [_network(dice, draft) for _ in range(dice.number(1, 2))]}
        case _:
            return {"domainNames": ["example.org"]}  # refused: fails closed


def _protocol(dice: Dice, draft: Draft) -> WrittenDocument:
    protocol, number = _some_port(dice, draft)
    match dice.weighted({"number": 0.4, "range": 0.2, "name": 0.2, "all": 0.2}):
        case "number":
            return {protocol.lower(): {"destinationPort": {"number": number}}}
        case "range":
            span = {"start": number - dice.number(0, 120), "end": number + dice.number(0, 120)}
            return {protocol.lower(): {"destinationPort": {"range": span}}}
        case "name":
            return {"destinationNamedPort": dice.one(PORT_NAMES)}
        case _:
            return {protocol.lower(): {}}


# --- peers of rules ---------------------------------------------------------------------------------------------------


def _pods(dice: Dice) -> WrittenDocument:
    match dice.weighted({"all": 0.2, "app": 0.3, "tier": 0.25, "one of": 0.1, "not": 0.1, "with": 0.05}):
        case "all":
            return {}
        case "app":
            return {"matchLabels": {"app": dice.one(APPS)}}
        case "tier":
            return {"matchLabels": {"tier": dice.one(TIERS)}}
        case "one of":
            return _expression("app", "In", dice.some(APPS, 2))
        case "not":
            return _expression("tier", "NotIn", [dice.one(TIERS)])
        case _:
            return _expression("app", dice.one(("Exists", "DoesNotExist")), [])


def _spaces(dice: Dice) -> WrittenDocument:
    match dice.weighted({"all": 0.25, "team": 0.35, "name": 0.25, "not": 0.15}):
        case "all":
            return {}
        case "team":
            return {"matchLabels": {"team": dice.one(TEAMS)}}
        case "name":
            return {"matchLabels": {NAME_LABEL: dice.one(SPACES)}}
        case _:
            return _expression("team", "NotIn", [dice.one(TEAMS)])


def _pods_of_spaces(dice: Dice) -> WrittenDocument:
    return {"namespaceSelector": _spaces(dice), "podSelector": _pods(dice)}


def _expression(key: str, operator: str, values: list[str]) -> WrittenDocument:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": values} if values else {})}]}


def _block(dice: Dice, draft: Draft) -> WrittenDocument:
    """Everything or a network, maybe with exceptions inside of it."""
    family = dice.one(draft.families)
    inner = sorted({one for one in _networks(draft, family) if not one.endswith(f"/{WIDTHS[family]}")})
    if dice.chance(0.5):
        whole = "0.0.0.0/0" if family is Family.IPV4 else "::/0"
        return {"cidr": whole, "except": dice.some(inner, dice.number(1, 2))}
    if dice.chance(0.4):
        node = dice.one(draft.nodes)
        pods = [pod.address(family) for pod in draft.pods if pod.node == node and not pod.host_network]
        excepted = [f"{one}/{WIDTHS[family]}" for one in dice.some(pods, 1)]
        return {"cidr": node.cidr(family), **({"except": excepted} if excepted else {})}
    return {"cidr": dice.one(_networks(draft, family))}


def _network(dice: Dice, draft: Draft) -> str:
    return dice.one(_networks(draft, dice.one(draft.families)))


def _networks(draft: Draft, family: Family) -> list[str]:
    """Networks of Pods, of segments, and of single machines."""
    pods = [node.cidr(family) for node in draft.nodes]
    machines = [*(node.main(family) for node in draft.nodes), *(host.address(family) for host in draft.hosts)]
    segment = {Family.IPV4: ".0/24", Family.IPV6: "::/64"}[family]
    separator = {Family.IPV4: ".", Family.IPV6: "::"}[family]
    segments = sorted({one.rpartition(separator)[0] + segment for one in machines})
    single = [f"{one}/{WIDTHS[family]}" for one in (*machines, *(pod.address(family) for pod in draft.pods))]
    return [*pods, *segments, *single]


def _some_port(dice: Dice, draft: Draft) -> tuple[str, int]:
    ports = [(protocol, number) for pod in draft.pods for _, protocol, number in pod.ports]
    return dice.one(sorted(set(ports)) or [("TCP", 8000)])


# --- changes ----------------------------------------------------------------------------------------------------------


def _add_policy(dice: Dice, draft: Draft) -> tuple[Draft, str]:
    new = network_policy(dice, draft) if dice.chance(0.6) else cluster_network_policy(dice, draft)
    return _with(draft, new), f"{_named(new)} is added"


def _remove_policy(dice: Dice, draft: Draft) -> tuple[Draft, str]:
    if not draft.policies:
        return draft, ""
    gone = dice.one(draft.policies)
    return replace(
        draft, policies=tuple(one for one in draft.policies if one is not gone)
    ), f"{_named(gone)} is removed"


def _edit_policy(dice: Dice, draft: Draft) -> tuple[Draft, str]:
    if not draft.policies:
        return draft, ""
    old = dice.one(draft.policies)
    make = network_policy if old["kind"] == "NetworkPolicy" else cluster_network_policy
    new = {**make(dice, draft), "metadata": old["metadata"]}
    policies = tuple(new if one is old else one for one in draft.policies)
    return replace(draft, policies=policies), f"{_named(old)} changes"


def _relabel_pod(dice: Dice, draft: Draft) -> tuple[Draft, str]:
    pod = dice.one(draft.pods)
    tier = dice.one([tier for tier in TIERS if tier != pod.tier])
    pods = tuple(replace(one, tier=tier) if one is pod else one for one in draft.pods)
    return replace(draft, pods=pods), f"{pod.name} is now tier {tier or 'none'}"


def _relabel_namespace(dice: Dice, draft: Draft) -> tuple[Draft, str]:
    space = dice.one(SPACES)
    teams = tuple((name, dice.one(TEAMS) if name == space else team) for name, team in draft.teams)
    return replace(draft, teams=teams), f"namespace {space} gets labels"


_Change = Callable[[Dice, Draft], tuple[Draft, str]]
_CHANGES: dict[_Change, float] = {
    _add_policy: 3,
    _remove_policy: 2,
    _edit_policy: 3,
    _relabel_pod: 2,
    _relabel_namespace: 1,
}


def _with(draft: Draft, policy: WrittenDocument) -> Draft:
    return replace(draft, policies=(*draft.policies, policy))


def _unused_name(draft: Draft, prefix: str) -> str:
    taken = {_named(one).rpartition(" ")[2] for one in draft.policies}
    return next(f"{prefix}-{number}" for number in range(1, 1000) if f"{prefix}-{number}" not in taken)


def _named(policy: WrittenDocument) -> str:
    metadata = policy["metadata"]
    name = metadata["name"] if isinstance(metadata, dict) else ""
    return f"{policy['kind']} {name}"
