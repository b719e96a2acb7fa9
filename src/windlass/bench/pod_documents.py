"""Pods as an API server sends them: about 6 KB of JSON each, most of which an agent does not read. Values only."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import msgspec

SIZE = 6_000  # bytes, about: as a Pod with two containers, their status and a few managed fields
_FIRST_ADDRESS = IPv4Address("10.0.0.0")


def namespace_of(number: int) -> str:
    return f"team-{number % 100}"


def name_of(number: int) -> str:
    return f"web-{number:06}-7c9d8f6b5-x2x4q"


def address_of(number: int, times: int = 0) -> str:
    """The address after so many changes."""
    return str(_FIRST_ADDRESS + number + (times << 20))


def pod(number: int, times: int = 0, node: str = "node-2") -> dict[str, Any]:
    """A Pod without the fields that the API server fills in: `sent` adds those."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace_of(number),
            "name": name_of(number),
            "labels": {"app": f"web-{number % 1000}", "pod-template-hash": "7c9d8f6b5", "team": namespace_of(number)},
            "annotations": {"example.org/filler": "x" * 1_500},
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [_container("main"), _container("sidecar")],
        },
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": address_of(number, times)}],
            "podIP": address_of(number, times),
        },
    }


def sent(number: int, version: int, times: int = 0) -> bytes:
    """The Pod as JSON of about SIZE bytes, with the fields that an API server adds."""
    document = pod(number, times)
    added = {
        "uid": f"8f6f1c5e-0000-4000-8000-{number:012}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    document["metadata"] = {**document["metadata"], **added}
    short = SIZE - len(msgspec.json.encode(document)) - 40
    document["status"] = {**document["status"], "message": "x" * max(0, short)}
    return msgspec.json.encode(document)


def _container(name: str) -> dict[str, object]:
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(12)]
    return {
        "name": name,
        "image": "registry.example/web:1",
        "env": variables,
        "ports": [{"name": f"http-{name[:4]}", "containerPort": 8080 if name == "main" else 8081}],
    }
