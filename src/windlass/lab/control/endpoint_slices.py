"""Makes EndpointSlices for Services with a selector, as the controller of Kubernetes would. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import LabPod, LabService, LabServicePort
from windlass.lab.scenarios.targets import named_port
from windlass.model.families import Family, IPAddress, family_of

SERVICE_LABEL = "kubernetes.io/service-name"

Slice = dict[str, object]


def slices(desired: DesiredState, addresses: PodAddresses) -> Iterator[Slice]:
    """The slices of all Services with a selector for which the scenario wrote no slice.

    `addresses` are the actual addresses of the Pods.
    """
    written = with_written_slices(desired)
    for service in desired.services.values():
        if service.spec.selector and service.spec.type != "ExternalName" and service.key not in written:
            for family in service.families:
                yield from _slices_of(service, family, desired, addresses)


def with_written_slices(desired: DesiredState) -> set[str]:
    """The Services for which the scenario itself has slices, by `namespace/name`."""
    return {
        f"{o.view.metadata.namespace or 'default'}/{o.view.metadata.labels.get(SERVICE_LABEL)}"
        for o in desired.objects.values()
        if o.kind == "EndpointSlice"
    }


def _slices_of(service: LabService, family: Family, desired: DesiredState, addresses: PodAddresses) -> Iterator[Slice]:
    """One slice for each set of port numbers: a named targetPort may have a different number in each Pod."""
    groups: dict[tuple[tuple[LabServicePort, int], ...], list[Slice]] = defaultdict(list)
    for pod in _selected(service, desired):
        address = next((a for a in addresses.get(pod.key, ()) if family_of(a) is family), None)
        if address:
            groups[_ports(service, pod)].append(_endpoint(pod, address, service, desired))
    for number, (ports, endpoints) in enumerate(groups.items() or [((), [])]):
        suffix = f"-{number}" if number else ""
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service.metadata.name}-{str(family).lower()}{suffix}",
                "namespace": service.metadata.namespace or "default",
                "labels": _labels(service),
            },
            "addressType": str(family),
            "ports": [{"name": port.name, "protocol": port.protocol.value, "port": target} for port, target in ports],
            "endpoints": endpoints,
        }


def _selected(service: LabService, desired: DesiredState) -> Iterator[LabPod]:
    namespace = service.metadata.namespace or "default"
    for pod in desired.pods.values():
        in_namespace = (pod.metadata.namespace or "default") == namespace
        if in_namespace and service.spec.selector.items() <= pod.metadata.labels.items():
            yield pod


def _ports(service: LabService, pod: LabPod) -> tuple[tuple[LabServicePort, int], ...]:
    """The Service ports with their numbers in this Pod, without named targetPorts that the Pod does not have."""
    found: list[tuple[LabServicePort, int]] = []
    for port in service.spec.ports:
        wanted = port.target_port or port.port
        number = named_port(wanted, pod.ports, port.protocol) if isinstance(wanted, str) else wanted
        if number is not None:
            found.append((port, number))
    return tuple(found)


def _endpoint(pod: LabPod, address: IPAddress, service: LabService, desired: DesiredState) -> Slice:
    node = desired.nodes[pod.spec.node_name]
    endpoint: Slice = {
        "addresses": [str(address)],
        "conditions": {
            "ready": service.spec.publish_not_ready_addresses or (pod.ready and not pod.terminating),
            "serving": pod.ready,
            "terminating": pod.terminating,
        },
        "nodeName": node.name,
        "targetRef": {"kind": "Pod", "name": pod.metadata.name, "namespace": pod.metadata.namespace or "default"},
    }
    return endpoint | ({"zone": node.zone} if node.zone else {})


def _labels(service: LabService) -> Mapping[str, str]:
    headless = {"service.kubernetes.io/headless": ""} if service.headless else {}
    return {SERVICE_LABEL: service.metadata.name, "endpointslice.kubernetes.io/managed-by": "windlass-lab", **headless}
