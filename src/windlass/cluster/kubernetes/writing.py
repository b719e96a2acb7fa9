"""What is written to the API server: annotations and one taint of a Node, and Events about objects that are refused.

Not responsible for when: that is the agent's. Nothing is written that is there already.
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
from windlass.cluster.objects import NOT_USABLE, Problem, Reference, Verdict

UPLINK_MAC, GATEWAY_ADDRESSES = "node.windlass.dev/uplink-mac", "node.windlass.dev/gateway-addresses"
NOT_READY = {"key": "node.windlass.dev/not-ready", "effect": "NoSchedule"}  # a taint: no Pods without a network
CONTROLLER = "windlass.dev/agent"

_NODES = "/api/v1/nodes"
_NOTE_BYTES, _INSTANCE_BYTES = 1024, 128  # the API allows no more
_ATTEMPTS = 5  # others write to the same Node
_NOT_FOUND, _CONFLICT = 404, 409  # of a new object, a conflict is that there is one of that name
_BEING_TERMINATED = "because it is being terminated"  # a namespace, in which nothing may be made any more
_API_VERSIONS = {kind.name: kind.api_version for kind in KINDS}


class MarkedMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class MarkedSpec(Struct, frozen=True):
    taints: tuple[dict[str, object], ...] | None = None  # whole: those of others must stay as they are


class MarkedNode(Struct, frozen=True):
    """Of a Node what is to be written, and what must not get lost by it."""

    metadata: MarkedMetadata = MarkedMetadata()
    spec: MarkedSpec = MarkedSpec()


class _Nodes(Struct, frozen=True):
    items: tuple[MarkedNode, ...] | None = None


async def mark_node(connection: APIConnection, name: str, annotations: Mapping[str, str], *, is_ready: bool) -> None:
    """The Node has these annotations (and others) then, and the taint only if it is not ready. Nothing if it is gone.

    `spec.taints` is one value to the API, whatever kind of patch: without the version that it was read at, a taint
    that somebody else adds meanwhile would be lost.
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
    """A merge patch; empty where all is so already."""
    there = node.metadata.annotations or {}
    changed = {key: value for key, value in annotations.items() if there.get(key) != value}
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
    """As a list: to get a Node by its name would take another permission."""
    content = await connection.request("GET", _NODES, {"fieldSelector": f"metadata.name={name}"})
    try:
        found = msgspec.json.decode(content, type=_Nodes).items
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None
    return found[0] if found else None


async def tell(connection: APIConnection, problem: Problem, instance: str) -> None:
    """An Event about an object; one for the whole cluster, however many agents tell it."""
    if problem.regarding is None:
        return
    body = event(problem.sentence, problem.regarding, instance, datetime.now(UTC), problem.verdict)
    path = f"/apis/events.k8s.io/v1/namespaces/{_namespace(problem.regarding)}/events"
    try:
        await connection.request("POST", path, body=msgspec.json.encode(body))
    except RequestRefused as error:
        # Somebody has told it, or the object's namespace goes: then there is nothing to tell.
        if error.code not in {_CONFLICT, _NOT_FOUND} and _BEING_TERMINATED not in str(error):
            raise


def event(
    sentence: str, regarding: Reference, instance: str, now: datetime, verdict: Verdict = NOT_USABLE
) -> dict[str, object]:
    """`instance`: the Node whose agent writes it."""
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
        "reason": verdict.reason,
        "action": verdict.action,
        "regarding": named,
        "note": _shortened(sentence, _NOTE_BYTES),
    }


def _namespace(regarding: Reference) -> str:
    return regarding.namespace or "default"  # of objects that have none: the API asks for it


def _shortened(text: str, most: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."
