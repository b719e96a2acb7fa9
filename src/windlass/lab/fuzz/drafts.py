"""A random cluster before it is written as documents. It is immutable: a change gives a new draft."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from windlass.lab.fuzz.cluster_views import Document, Documents, identity
from windlass.lab.fuzz.machine_drafts import HostDraft, NodeDraft, PodDraft
from windlass.lab.fuzz.service_drafts import ServiceDraft, slices
from windlass.model.families import Family


@dataclass(frozen=True, slots=True)
class Draft:
    families: tuple[Family, ...]
    mode: str
    tunnel: str
    node_port_networks: tuple[str, ...]
    nodes: tuple[NodeDraft, ...]
    hosts: tuple[HostDraft, ...]
    pods: tuple[PodDraft, ...]
    services: tuple[ServiceDraft, ...]
    noise: tuple[Document, ...] = ()
    teams: tuple[tuple[str, str], ...] = ()  # the label of each namespace; empty: the cluster has no policies
    policies: tuple[Document, ...] = ()

    def documents(self) -> Iterator[Document]:
        settings: Document = {"trafficMode": self.mode}
        settings |= {} if self.mode == "noEncap" else {"tunnelType": self.tunnel}
        settings |= {"nodePortAddresses": list(self.node_port_networks)} if self.node_port_networks else {}
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "windlass-config", "namespace": "kube-system"},
            "data": {"windlass.yaml": yaml.safe_dump(settings, sort_keys=False, default_flow_style=True).strip()},
        }
        for part in (self.nodes, self.hosts, self.pods, self.services):
            yield from (one.document() for one in part)
        for service in self.services:
            if service.endpoints is not None:
                yield from slices(service, service.endpoints, self.pods, self.hosts)
        yield from self.noise
        for name, team in self.teams:
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}
        yield from self.policies

    def by_identity(self) -> Documents:
        return {identity(document): document for document in self.documents()}
