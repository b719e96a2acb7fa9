"""Writes annotations and one taint of a Node, and Events about objects that cannot be used, to the API server.

It writes only what differs. The agent decides when to write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from windlass.cluster.clusters import KINDS
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.decoding import Garbled
from windlass.cluster.objects import NOT_USABLE, EventReason, Problem, Reference

UPLINK_MAC, GATEWAY_ADDRESSES = "node.windlass.dev/uplink-mac", "node.windlass.dev/gateway-addresses"
NOT_READY = {"key": "node.windlass.dev/not-ready", "effect": "NoSchedule"}  # keeps Pods off a Node without a network
CONTROLLER = "windlass.dev/agent"

_NODES = "/api/v1/nodes"
_NOTE_BYTES, _INSTANCE_BYTES = 1024, 128  # limits of the API
_ATTEMPTS = 5  # a write conflicts if another client writes to the same Node
_NOT_FOUND, _CONFLICT = 404, 409  # a new object conflicts with one of the same name
_BEING_TERMINATED = "because it is being terminated"  # the namespace: no object can be created in it
_API_VERSIONS = {kind.name: kind.api_version for kind in KINDS}


class MarkedMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class MarkedSpec(Struct, frozen=True):
    taints: tuple[dict[str, object], ...] | None = None  # complete, so that the taints of others stay as they are


class MarkedNode(Struct, frozen=True):
    """The fields of a Node that are written, and those that a write must not lose."""

    metadata: MarkedMetadata = MarkedMetadata()
    spec: MarkedSpec = MarkedSpec()


class _Nodes(Struct, frozen=True):
    items: tuple[MarkedNode, ...] | None = None


async def mark_node(connection: APIConnection, name: str, annotations: Mapping[str, str], *, is_ready: bool) -> None:
    """Set these annotations, and set the taint unless the Node is ready. Does nothing if the Node does not exist.

    Every kind of patch replaces `spec.taints` as a whole. The patch names the version that was read, so that a taint
    that another client adds meanwhile is not lost.
    """
    for left in reversed(range(_ATTEMPTS)):
        node = await _read(connection, name)
        patch = node and node_patch(node, annotations, is_ready=is_ready)
        if not patch:
            return
        body = msgspec.json.encode(patch)
        try:
            await connection.request(
                "PATCH", f"{_NODES}/{name}", body=body, content_type="application/merge-patch+json"
            )
        except RequestRefused as error:
            if error.code != _CONFLICT or not left:
                raise
        else:
            return


def node_patch(node: MarkedNode, annotations: Mapping[str, str], *, is_ready: bool) -> dict[str, object]:
    """The merge patch; empty if the Node has all of it already."""
    present = node.metadata.annotations or {}
    changed = {key: value for key, value in annotations.items() if present.get(key) != value}
    taints = node.spec.taints or ()
    others = [taint for taint in taints if not _is_ours(taint)]
    if is_ready is (len(others) == len(taints)):
        return {"metadata": {"annotations": changed}} if changed else {}
    metadata: dict[str, object] = {"resourceVersion": node.metadata.resource_version}
    metadata |= {"annotations": changed} if changed else {}
    return {"metadata": metadata, "spec": {"taints": (others if is_ready else [*others, NOT_READY]) or None}}


def _is_ours(taint: Mapping[str, object]) -> bool:
    return all(taint.get(field) == value for field, value in NOT_READY.items())


async def _read(connection: APIConnection, name: str) -> MarkedNode | None:
    """Read the Node with a list request: a get request would need another permission."""
    content = await connection.request("GET", _NODES, {"fieldSelector": f"metadata.name={name}"})
    try:
        found = msgspec.json.decode(content, type=_Nodes).items
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None
    return found[0] if found else None


async def write_event(connection: APIConnection, problem: Problem, instance: str) -> None:
    """Write an Event about the object of the problem; all agents of a cluster write the same one."""
    if problem.regarding is None:
        return
    body = event(problem.sentence, problem.regarding, instance, datetime.now(UTC), problem.reason)
    path = f"/apis/events.k8s.io/v1/namespaces/{_namespace(problem.regarding)}/events"
    try:
        await connection.request("POST", path, body=msgspec.json.encode(body))
    except RequestRefused as error:
        # Another agent has written it, or the namespace of the object is being deleted.
        if error.code not in {_CONFLICT, _NOT_FOUND} and _BEING_TERMINATED not in str(error):
            raise


def event(
    sentence: str, regarding: Reference, instance: str, now: datetime, kind: EventReason = NOT_USABLE
) -> dict[str, object]:
    """The body of an Event. `instance`: the Node whose agent writes it."""
    words = msgspec.json.encode((*regarding, sentence))
    version = _API_VERSIONS.get(regarding.kind, "v1")
    named = {"apiVersion": version, **{field: value for field, value in regarding._asdict().items() if value}}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"windlass-{hashlib.blake2b(words, digest_size=8).hexdigest()}",
            "namespace": _namespace(regarding),
        },
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": _shortened(instance, _INSTANCE_BYTES),
        "type": "Warning",
        "reason": kind.reason,
        "action": kind.action,
        "regarding": named,
        "note": _shortened(sentence, _NOTE_BYTES),
    }


def _namespace(regarding: Reference) -> str:
    return regarding.namespace or "default"  # Events about objects without a namespace must have one


def _shortened(text: str, most: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."
