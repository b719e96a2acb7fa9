"""The cluster that a scenario asks for at one of its steps: all objects applied so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from windlass.lab.scenarios.directives import Deletion, ExternalHost
from windlass.lab.scenarios.objects import CLUSTER_SCOPED, ConfigMap, KubernetesObject, LabNode, LabPod, LabService
from windlass.model.families import IPAddress
from windlass.model.nodes import TrafficMode

PodAddresses = Mapping[str, tuple[IPAddress, ...]]  # the addresses of each Pod, by `namespace/name`

CONFIG = "kube-system/windlass-config"
CONFIG_KEY = "windlass.yaml"


@dataclass(frozen=True, slots=True)
class DesiredState:
    objects: Mapping[tuple[str, str], KubernetesObject] = field(default_factory=dict)  # by kind and key
    hosts: Mapping[str, ExternalHost] = field(default_factory=dict)

    def after(
        self, objects: Iterable[KubernetesObject], hosts: Iterable[ExternalHost], deletes: Iterable[Deletion]
    ) -> DesiredState:
        """The state with the objects and deletions of a step applied."""
        gone = {(delete.spec.kind, _key(delete)) for delete in deletes}
        kept = {k: v for k, v in self.objects.items() if k not in gone}
        remaining = {name: host for name, host in self.hosts.items() if ("ExternalHost", name) not in gone}
        new = {(o.kind, o.key): o for o in objects}
        return DesiredState(kept | new, remaining | {host.name: host for host in hosts})

    @property
    def nodes(self) -> dict[str, LabNode]:
        return {o.view.name: o.view for o in self.objects.values() if isinstance(o.view, LabNode)}

    @property
    def pods(self) -> dict[str, LabPod]:
        """The running Pods: a Pod that is not scheduled, or has ended, has no network."""
        return {o.view.key: o.view for o in self.objects.values() if isinstance(o.view, LabPod) and o.view.runs}

    @property
    def services(self) -> dict[str, LabService]:
        return {o.view.key: o.view for o in self.objects.values() if isinstance(o.view, LabService)}

    @property
    def configuration(self) -> dict[str, object]:
        """The agents' configuration file as the ConfigMap holds it."""
        found = self.objects.get(("ConfigMap", CONFIG))
        view = found.view if found else None
        text = view.data.get(CONFIG_KEY, "") if isinstance(view, ConfigMap) else ""
        return yaml.load(text, Loader=yaml.CSafeLoader) or {}

    @property
    def traffic_mode(self) -> TrafficMode:
        return TrafficMode(self.configuration.get("trafficMode", TrafficMode.ENCAP.value))

    def problems(self, earlier: DesiredState, deletes: Iterable[Deletion]) -> Iterator[str]:
        """References to objects that do not exist, and changes that the lab cannot make."""
        for delete in deletes:
            kind = delete.spec.kind
            known = earlier.hosts if kind == "ExternalHost" else {key for k, key in earlier.objects if k == kind}
            if _key(delete) not in known:
                name = delete.metadata.name
                yield f"Delete {name}, spec.name: no earlier step has a {kind} {delete.spec.name}"
        for name, node in self.nodes.items():
            if name in earlier.nodes and node.status.addresses != earlier.nodes[name].status.addresses:
                yield f"Node {name}, status.addresses: cannot change; delete the Node in an earlier step"
        for pod in self.pods.values():
            if pod.spec.node_name not in self.nodes:
                yield f"Pod {pod.key}, spec.nodeName: there is no Node {pod.spec.node_name}"
        yield from self._configuration_problems()

    def _configuration_problems(self) -> Iterator[str]:
        where = f"ConfigMap {CONFIG}, data[{CONFIG_KEY}]"
        try:
            written = self.configuration
            if not isinstance(written, dict):
                yield f"{where}: is not a mapping of settings to values"
            else:
                _ = self.traffic_mode
        except yaml.YAMLError as error:
            yield f"{where}: is not YAML: {' '.join(str(error).split())}"
        except ValueError:
            modes = ", ".join(mode.value for mode in TrafficMode)
            yield f"{where}: trafficMode: {written['trafficMode']!r} is not one of {modes}"


def pod_addresses(desired: DesiredState, attached: PodAddresses) -> PodAddresses:
    """The addresses of every Pod that has some: those of its Node for hostNetwork, else those from the CNI plugin."""
    nodes = desired.nodes
    return {
        key: tuple(nodes[pod.spec.node_name].addresses.values()) if pod.spec.host_network else attached[key]
        for key, pod in desired.pods.items()
        if pod.spec.host_network or key in attached
    }


def placeholder_addresses(desired: DesiredState) -> PodAddresses:
    """An address for each Pod before the Pods have their own, to check references early."""
    nodes = desired.nodes
    return {
        key: pod.fixed_addresses or tuple(c.network_address + 2 for c in nodes[pod.spec.node_name].pod_cidrs.values())
        for key, pod in desired.pods.items()
        if pod.spec.node_name in nodes
    }


def _key(delete: Deletion) -> str:
    kind, name = delete.spec.kind, delete.spec.name
    return name if "/" in name or kind in CLUSTER_SCOPED or kind == "ExternalHost" else f"default/{name}"
