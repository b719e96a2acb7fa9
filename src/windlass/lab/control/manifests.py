"""Writes the folder of manifests that the agents watch: one file per object, each replaced atomically."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from windlass import files
from windlass.lab.control import endpoint_slices
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import LabPod

Manifest = dict[str, object]


def render(desired: DesiredState, addresses: PodAddresses) -> Iterator[Manifest]:
    """The objects as an API server would store them: Pods with their addresses, Services with EndpointSlices."""
    for obj in desired.objects.values():
        raw = dict(obj.raw)
        if isinstance(obj.view, LabPod) and obj.key in addresses:
            ips = [{"ip": str(address)} for address in addresses[obj.key]]
            status = raw.get("status")
            raw["status"] = {**(status if isinstance(status, dict) else {}), "podIP": ips[0]["ip"], "podIPs": ips}
        yield raw
    yield from endpoint_slices.slices(desired, addresses)


def write(folder: Path, manifests: Iterator[Manifest]) -> None:
    """Makes the folder contain exactly these manifests. Does not touch files that stay the same."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {_file_name(manifest): msgspec.json.format(msgspec.json.encode(manifest)) for manifest in manifests}
    for name, content in wanted.items():
        file = folder / name
        if not file.exists() or file.read_bytes() != content:
            files.write(file, content, durable=False)  # readers ignore its hidden temporary file
    for file in folder.glob("*.yaml"):
        if file.name not in wanted:
            file.unlink()


def _file_name(manifest: Mapping[str, object]) -> str:
    """The content is JSON, which is YAML; readers of manifests look for .yaml."""
    metadata = msgspec.convert(manifest["metadata"], dict[str, object])
    namespace = metadata.get("namespace")
    parts = (manifest["kind"], namespace, metadata["name"]) if namespace else (manifest["kind"], metadata["name"])
    return f"{'.'.join(map(str, parts))}.yaml"
