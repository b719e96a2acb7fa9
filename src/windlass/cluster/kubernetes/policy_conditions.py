"""The condition of a ClusterNetworkPolicy of which a part is refused: the parts, and why they are refused.

The API has a list of conditions in the status and defines no types, so the type has our own domain. Conditions of
other programs do not change. A policy that is enforced as written has no condition, and no agent writes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.decoding import Garbled

TYPE = "windlass.dev/Accepted"
REASON = "NotUsable"
PATH = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
# For this long, an agent that refuses nothing keeps another agent's condition about the same contents: agents of two
# versions may run at the same time, and must not overwrite each other.
RESPECTED = timedelta(hours=1)

_MESSAGE_CHARACTERS = 32_768  # limit of the API
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409

PolicyCondition = dict[str, object]


class _Metadata(Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0  # the version of its contents: it grows with each change of the spec
    resource_version: str = ""


class _ConditionedStatus(Struct, frozen=True):
    conditions: tuple[PolicyCondition, ...] | None = None  # all of them, so that those of other programs are kept


class ConditionedPolicy(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    status: _ConditionedStatus = _ConditionedStatus()


class _Policies(Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None


async def write_conditions(connection: APIConnection, refused: Callable[[bytes], str]) -> bool:
    """Update the conditions of all ClusterNetworkPolicies. `refused`: the refused parts of one, given as JSON.

    Returns whether any of them has, or had, our condition.

    The policies are read first, so that a condition is about the contents that it names, and only conditions that
    differ are written. Each write contains the version that was read: if another agent or program was faster, the API
    server refuses the write, and this agent does not retry it. If it refuses a write for another reason, the other
    policies get their conditions first.
    """
    is_any, first_refusal = False, None
    for document, policy in await _read(connection):
        name = policy.metadata.name
        conditions = changed_conditions(policy, refused(document), datetime.now(UTC))
        is_any |= conditions is not None or any(one.get("type") == TYPE for one in policy.status.conditions or ())
        if conditions is None:
            continue
        metadata = {"resourceVersion": policy.metadata.resource_version}
        body = msgspec.json.encode({"metadata": metadata, "status": {"conditions": conditions}})
        try:
            path = f"{PATH}/{name}/status"
            await connection.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        except RequestRefused as error:
            if error.code == _FORBIDDEN:
                raise  # all others would be refused, too
            if error.code not in {_CONFLICT, _NOT_FOUND}:
                first_refusal = first_refusal or error
    if first_refusal is not None:
        raise first_refusal
    return is_any


def changed_conditions(policy: ConditionedPolicy, refused: str, now: datetime) -> list[PolicyCondition] | None:
    """All conditions that the policy should have; None if it has them."""
    present = policy.status.conditions or ()
    ours = next((one for one in present if one.get("type") == TYPE), None)
    others = [one for one in present if one.get("type") != TYPE]
    if not refused:
        return others if ours is not None and _is_outdated(ours, policy.metadata.generation, now) else None
    message = refused if len(refused) <= _MESSAGE_CHARACTERS else refused[: _MESSAGE_CHARACTERS - 3] + "..."
    condition: PolicyCondition = {
        "type": TYPE,
        "status": "False",
        "reason": REASON,
        "message": message,
        "observedGeneration": policy.metadata.generation,
    }
    if ours is not None and all(ours.get(key) == value for key, value in condition.items()):
        return None
    since = ours.get("lastTransitionTime") if ours and ours.get("status") == "False" else None
    return [*others, {**condition, "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ")}]


def _is_outdated(condition: PolicyCondition, generation: int, now: datetime) -> bool:
    """Whether it is about previous contents, or an agent of another version wrote it long ago."""
    if condition.get("observedGeneration") != generation:
        return True
    try:
        written = datetime.fromisoformat(str(condition.get("lastTransitionTime")))
    except ValueError:
        return True
    return now - written.astimezone(UTC) > RESPECTED


async def _read(connection: APIConnection) -> list[tuple[bytes, ConditionedPolicy]]:
    content = await connection.request("GET", PATH)
    try:
        items = msgspec.json.decode(content, type=_Policies).items or ()
        return [(bytes(one), msgspec.json.decode(one, type=ConditionedPolicy)) for one in items]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None
