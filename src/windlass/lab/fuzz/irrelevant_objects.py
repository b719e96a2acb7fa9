"""Objects that are not for a proxy, and malformed objects: they must not affect the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windlass.cluster.objects import PROXY_NAME_LABEL
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument, manifest, nonempty
from windlass.lab.fuzz.drafts import NAMESPACE, V4, Draft, NodeDraft, cluster_ip, namespace_of
from windlass.lab.fuzz.eligible_endpoints import SERVICE_OF_SLICE
from windlass.model.families import Family


def added(dice: Dice, draft: Draft) -> Draft:
    written = [s.name for s in draft.services if s.endpoints is not None and namespace_of(s.app) == NAMESPACE]
    owner = dice.one(written) if written else "noise-absent"  # the lab makes no slices for a Service that has one
    kinds = [*_not_for_a_proxy(draft), *_malformed(draft, dice.one(draft.nodes)), _slices(draft, owner)]
    return replace(draft, noise=tuple(document for kind in dice.some(kinds, dice.number(0, 4)) for document in kind))


def _not_for_a_proxy(draft: Draft) -> list[list[WrittenDocument]]:
    family = draft.families[0]
    foreign = {"type": "NodePort", "clusterIP": cluster_ip(family, 200)}
    return [
        [_service("noise-headless", {"clusterIP": "None"})],
        [_service("noise-name", {"type": "ExternalName", "externalName": "www.example.com"})],
        [_service("noise-foreign", foreign, labels={PROXY_NAME_LABEL: "another"}, node_port=30901)],
        [_ended_pod(draft.nodes[0])],
    ]


def _malformed(draft: Draft, node: NodeDraft) -> list[list[WrittenDocument]]:
    """Values that the API server would refuse, and some that cannot be served."""
    family = draft.families[0]
    words: WrittenDocument = {
        "type": "Sometimes",
        "externalTrafficPolicy": "Maybe",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}},
    }
    return [
        [_service("noise-low", {"type": "NodePort", "clusterIP": cluster_ip(family, 201)}, node_port=80)],
        [_service("noise-inside", {"clusterIP": node.pod(family, 250)})],
        [_service("noise-portless", {"clusterIP": cluster_ip(family, 202), "ports": []})],
        [_service("noise-words", {"clusterIP": cluster_ip(family, 203), **words})],
        [_service("noise-nowhere", {"clusterIP": ""})],
    ]


def _slices(draft: Draft, owner: str) -> list[WrittenDocument]:
    """Slices without a valid endpoint."""
    family = draft.families[0]
    address, other = draft.nodes[0].pod(family, 99), "fd00:172:16:1::99" if family is V4 else "172.16.1.99"
    good: WrittenDocument = {"name": "web", "port": 80}
    return [
        _slice("noise-zero", owner, family, [address], {"name": "web", "port": 0}),
        _slice("noise-no-port", owner, family, [address], {"name": "web"}),
        _slice("noise-high-port", owner, family, [address], {"name": "web", "port": 70000}),
        _slice("noise-family", owner, family, [other], good),
        _slice("noise-words", owner, family, ["web.example.com"], good),
        _slice("noise-empty", owner, family, [], good),
        {**_slice("noise-fqdn", owner, family, ["web.example.com"], good), "addressType": "FQDN"},
        {**_slice("noise-broken", "noise-absent", family, [], good), "endpoints": "none", "ports": {"web": 80}},
    ]


# Documents ------------------------------------------------------------------------------------------------------


def _service(
    name: str, spec: Mapping[str, object], *, labels: Mapping[str, str] | None = None, node_port: int | None = None
) -> WrittenDocument:
    port = nonempty({"name": "web", "port": 80, "targetPort": "http", "nodePort": node_port})
    metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(labels or {})}
    return manifest("Service", metadata, spec={"ports": [port], "selector": {"app": "red"}, **spec})


def _ended_pod(node: NodeDraft) -> WrittenDocument:
    """A Pod that has ended: it is not an endpoint, although the selector matches its labels."""
    metadata = {"name": "noise-over", "namespace": NAMESPACE, "labels": {"app": "red"}}
    spec = {"nodeName": node.name, "containers": [{"name": "main"}]}
    return manifest("Pod", metadata, spec=spec, status={"phase": "Succeeded"})


def _slice(name: str, owner: str, family: Family, addresses: list[str], port: WrittenDocument) -> WrittenDocument:
    return manifest(
        "EndpointSlice",
        {"name": name, "namespace": NAMESPACE, "labels": {SERVICE_OF_SLICE: owner}},
        api_version="discovery.k8s.io/v1",
        addressType=str(family),
        ports=[port],
        endpoints=[{"addresses": addresses}],
    )
