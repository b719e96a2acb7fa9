"""Which condition a ClusterNetworkPolicy gets: only what is refused of it, and only if it differs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from api_servers import StandIn

from windlass.agent.cluster_writers import refused_parts
from windlass.cluster.clusters import KINDS
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.policy_conditions import (
    PATH,
    RESPECTED,
    TYPE,
    ConditionedPolicy,
    changed_conditions,
    write_conditions,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OTHER = {"type": "example.com/Ready", "status": "True", "reason": "Fine", "message": ""}


def policy(*conditions: object, generation: int = 1) -> ConditionedPolicy:
    document = {"metadata": {"name": "a", "generation": generation}, "status": {"conditions": conditions}}
    return msgspec.convert(document, ConditionedPolicy)


def refused(message: str = "bad", generation: int = 1, when: datetime = NOW) -> dict[str, object]:
    return {
        "type": TYPE,
        "status": "False",
        "reason": "NotUsable",
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def test_a_policy_that_is_enforced_as_written_gets_none():
    assert changed_conditions(policy(), "", NOW) is None
    assert changed_conditions(policy(OTHER), "", NOW) is None


def test_what_is_refused_is_said_beside_the_conditions_of_others():
    assert changed_conditions(policy(OTHER), "bad", NOW) == [OTHER, refused()]


def test_what_is_there_is_not_written_again():
    later = NOW + timedelta(days=1)
    assert changed_conditions(policy(refused(), OTHER), "bad", later) is None


def test_another_message_or_new_contents_keep_the_time_since_when_it_is_refused():
    later = NOW + timedelta(days=1)
    assert changed_conditions(policy(refused()), "worse", later) == [refused("worse")]
    assert changed_conditions(policy(refused(), generation=2), "bad", later) == [refused(generation=2)]


def test_a_condition_about_former_contents_goes():
    assert changed_conditions(policy(OTHER, refused(), generation=2), "", NOW) == [OTHER]


def test_an_agent_of_another_version_is_contradicted_once_an_hour_at_most():
    assert changed_conditions(policy(refused()), "", NOW + RESPECTED) is None
    assert changed_conditions(policy(refused()), "", NOW + RESPECTED + timedelta(seconds=1)) == []


def test_a_long_message_fits_the_limit_of_the_api():
    (condition,) = changed_conditions(policy(), "x" * 40_000, NOW)
    assert len(condition["message"]) == 32_768


def test_the_parts_that_are_refused():
    egress = [{"action": "Accept", "to": [{"domainNames": ["example.com"]}]}]
    document = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "a"}}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}}
    assert "domainNames are not supported" in refused_parts(
        msgspec.json.encode({**document, "spec": {**spec, "egress": egress}})
    )
    assert refused_parts(msgspec.json.encode({**document, "spec": spec})) == ""
    assert "spec.priority" in refused_parts(msgspec.json.encode({**document, "spec": {**spec, "priority": "high"}}))


async def test_a_refused_write_does_not_keep_other_policies_from_their_condition():
    server = StandIn(KINDS)
    for name in ("a", "b"):
        server.put(PATH, name)
        server.refusals[f"{PATH}/{name}/status"] = 422, f"status of {name} is invalid"
    await server.start()
    try:
        async with APIConnection(lambda: Access(server.address, "a test", "a token")) as connection:
            with pytest.raises(RequestRefused, match="status of a is invalid"):
                await write_conditions(connection, lambda _: "bad")
    finally:
        await server.stop()
    assert [path for path, _ in server.requests] == [PATH, f"{PATH}/a/status", f"{PATH}/b/status"]
