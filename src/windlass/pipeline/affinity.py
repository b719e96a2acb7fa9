"""Session affinity: a client that keeps connecting stays with its endpoint (sessionAffinity: ClientIP).

ServiceLB looks the client up in SessionAffinity and goes on to EndpointDNAT, which translates to the stored endpoint.
If none is stored, a group chooses one by the client's address alone, and EndpointDNAT has the switch learn a flow for
that choice in SessionAffinity. The switch learns and expires these flows itself, so they work without an agent. They
are deleted with the EndpointDNAT flow that learned them, so with their endpoint.

A Service port may have two groups, for its two traffic policies. A client that is new to one of them starts with the
endpoint that served it by the other, if that endpoint may serve it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

from windlass.model.families import Family
from windlass.model.services import Endpoint
from windlass.openflow.actions import Action, Ct, Learn, LearnLoad, LearnMatch, Resubmit, Set, ToGroup
from windlass.openflow.conditions import ip
from windlass.openflow.fields import ETH_TYPE, IPV4_SRC, IPV6_SRC
from windlass.openflow.flows import Bucket, Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import ENDPOINT_DNAT, SESSION_AFFINITY
from windlass.pipeline.packet_marks import ENDPOINT, STICKY_GROUP
from windlass.pipeline.priorities import LOW, NORMAL

CLIENT = {Family.IPV4: IPV4_SRC, Family.IPV6: IPV6_SRC}
LONGEST_TIMEOUT = 65535  # the longest idle timeout of a flow in seconds; the agent ends longer ones by `seconds_of`
_SECONDS_BITS = 17


def look_up(group: int, other: int) -> tuple[Action, ...]:
    """What ServiceLB does: look up the endpoint that served this client last. `other` is the group of the other policy.

    The second lookup overrides the first.
    """
    looks = (action for one in (other, group) for action in (STICKY_GROUP.load(one), Resubmit(SESSION_AFFINITY.number)))
    return *looks, goto(ENDPOINT_DNAT)


def flows(
    family: Family, group: int, other: int, endpoints: Mapping[int, tuple[Endpoint, Ct]], seconds: int, why: str
) -> Iterator[Flow]:
    """`endpoints`: by number, each with the action that translates to it. `why` names the Service."""
    both = min(group, other)  # one cookie for both groups: learned flows stay while either group has the endpoint
    for number, (endpoint, translate) in endpoints.items():
        remember = Learn(
            table=SESSION_AFFINITY.number,
            priority=NORMAL,
            cookie=_cookie(both, number, seconds),
            specs=(
                LearnMatch(ETH_TYPE.whole, ip(family).value),
                LearnMatch(CLIENT[family].whole, CLIENT[family].whole),
                LearnMatch(STICKY_GROUP.bits, group),
                LearnLoad(ENDPOINT.bits, number),
            ),
            idle_timeout=seconds if seconds <= LONGEST_TIMEOUT else 0,
            delete_learned=True,
        )
        yield ENDPOINT_DNAT.flow(NORMAL, ip(family), STICKY_GROUP.is_(group), ENDPOINT.is_(number)).then(
            remember,
            translate,
            why=f"{why}, session affinity: translate to endpoint {endpoint.address} and remember it for this client",
        )
    yield ENDPOINT_DNAT.flow(LOW, STICKY_GROUP.is_(group)).then(
        ToGroup(group), why=f"{why}, session affinity: this client has no endpoint, or its endpoint is gone: choose one"
    )


def bucket(number: int) -> Bucket:
    return Bucket(number, (Set(ENDPOINT.is_(number)), Resubmit(ENDPOINT_DNAT.number)))


def numbered(endpoints: Sequence[Endpoint]) -> dict[int, Endpoint]:
    """Each with a number that does not depend on the others, except when two numbers collide, which is rare."""
    found: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        number = crc32(endpoint.port.to_bytes(2), crc32(endpoint.packed)) & 0x7FFFFFFF
        while number in found or not number:  # 0 stands for none
            number += 1
        found[number] = endpoint
    return found


def seconds_of(cookie: int) -> int:
    """The idle timeout of a learned flow."""
    return cookie & ((1 << _SECONDS_BITS) - 1)


def _cookie(group: int, number: int, seconds: int) -> int:
    """Different for each endpoint and each timeout: the switch deletes learned flows with the last flow that learns
    with their cookie.
    """
    digest = blake2b(group.to_bytes(4) + number.to_bytes(4), digest_size=8).digest()
    return int.from_bytes(digest) >> _SECONDS_BITS << _SECONDS_BITS | seconds
