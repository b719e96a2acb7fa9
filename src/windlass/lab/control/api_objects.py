"""A desired state as requests to an API server, with the required fields that a scenario may leave out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from windlass.cluster.clusters import KINDS
from windlass.lab.control.endpoint_slices import with_written_slices
from windlass.lab.control.manifests import Manifest
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import CLUSTER_SCOPED, KubernetesObject, LabNode, LabPod, LabService
from windlass.model.families import IPAddress

# In the order of creation: Namespaces before the objects in them. No agent reads ConfigMaps.
PATHS: Mapping[str, str] = {
    kind.name: kind.path_in("{}") for kind in sorted(KINDS, key=lambda kind: kind.struct.is_namespaced)
}


class Published(NamedTuple):
    """One object as the API server is to store it."""

    path: str
    document: Manifest  # without its status, which has its own path
    status: Manifest
    is_terminating: bool = False  # it was deleted, and still exists
    created_as: Manifest | None = None  # for an object that must be created like this before it can become `document`


def published(desired: DesiredState, addresses: PodAddresses) -> dict[str, list[Published]]:
    """The objects by kind, in the order of creation."""
    found: dict[str, list[Published]] = {kind: [] for kind in PATHS}
    for obj in desired.objects.values():
        if obj.kind in PATHS:
            found[obj.kind].append(_published(obj, desired, addresses))
    written = {one.path for one in found["Namespace"]}
    for namespace in sorted(set(_namespaces(desired))):
        path = f"{PATHS['Namespace']}/{namespace}"
        if path not in written:
            document: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            found["Namespace"].append(Published(path, document, {}))
    return found


def _published(obj: KubernetesObject, desired: DesiredState, addresses: PodAddresses) -> Published:
    metadata = _mapping(obj.raw.get("metadata"))
    namespace = str(metadata.get("namespace") or "default")
    path = f"{PATHS[obj.kind].format(namespace)}/{metadata['name']}"
    document = {key: value for key, value in obj.raw.items() if key != "status"}
    kept = {key: value for key, value in metadata.items() if key in {"name", "labels", "annotations"}}
    document["metadata"] = kept | ({} if obj.kind in CLUSTER_SCOPED else {"namespace": namespace})
    status = _mapping(obj.raw.get("status"))
    match obj.view:
        case LabPod() as pod:
            document["spec"] = _pod_spec(_mapping(obj.raw.get("spec")))
            return Published(path, document, _pod_status(status, addresses.get(pod.key, ())), pod.terminating)
        case LabService() as service:
            document["spec"] = spec = _service_spec(_mapping(obj.raw.get("spec")), service, desired)
            balancer = {"loadBalancer": status.get("loadBalancer") or {"ingress": None}}
            return Published(path, document, balancer, created_as=_with_unique_node_ports(document, spec))
        case LabNode():
            return Published(path, document, {"addresses": status.get("addresses")})
        case _:
            return Published(path, document, {})


def _pod_spec(spec: Manifest) -> Manifest:
    containers = spec.get("containers")
    listed = [_mapping(one) for one in containers] if isinstance(containers, list) else []
    named = [{"name": f"c{number}", "image": "lab", **one} for number, one in enumerate(listed or [{}])]
    # No kubelet pulls the image, and the lab itself removes deleted Pods.
    return {**spec, "containers": named}


def _pod_status(status: Manifest, addresses: tuple[IPAddress, ...]) -> Manifest:
    """The status of a Pod, as a kubelet reports it."""
    conditions = [_mapping(one) for one in _list(status.get("conditions"))]
    if not any(one.get("type") == "Ready" for one in conditions):
        conditions.append({"type": "Ready", "status": "True"})
    ips = [{"ip": str(address)} for address in addresses]
    return {
        "phase": status.get("phase") or ("Running" if ips else "Pending"),
        "conditions": conditions,
        "podIP": ips[0]["ip"] if ips else None,
        "podIPs": ips or None,
    }


def _service_spec(spec: Manifest, service: LabService, desired: DesiredState) -> Manifest:
    filled = dict(spec)
    if len(_list(spec.get("clusterIPs"))) > 1 and "ipFamilyPolicy" not in spec:
        filled["ipFamilyPolicy"] = "RequireDualStack"
    if service.key in with_written_slices(desired):
        filled.pop("selector", None)  # else the controller would add its own slices to those of the scenario
    return filled


def _with_unique_node_ports(document: Manifest, spec: Manifest) -> Manifest | None:
    """Protocols may share a NodePort, but the API server refuses that when the Service is created."""
    ports = {one.get("nodePort") or object(): one for one in reversed([_mapping(o) for o in _list(spec.get("ports"))])}
    if len(ports) == len(_list(spec.get("ports"))):
        return None
    return {**document, "spec": {**spec, "ports": list(reversed(ports.values()))}}


def _namespaces(desired: DesiredState) -> Iterator[str]:
    for obj in desired.objects.values():
        if obj.kind in PATHS and obj.kind not in CLUSTER_SCOPED:
            yield obj.view.metadata.namespace or "default"


def _mapping(value: object) -> Manifest:
    return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
