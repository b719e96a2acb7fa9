"""Session affinity: while it keeps asking, a client stays with the endpoint that served it (sessionAffinity: ClientIP).

ServiceLB looks the client up in SessionAffinity and goes on to EndpointDNAT, which translates to the endpoint that was
remembered. Where none was, a group chooses one by the client's address alone, and EndpointDNAT has the switch write
that choice into SessionAffinity. Those flows are the switch's own: an agent that is away changes nothing, they end by
being idle, and they go with the EndpointDNAT flows that teach them, so with their endpoint.

A port of a Service may have two groups, for its two policies. A client that is new to one of them begins with the
endpoint that served it by the other, if that may serve it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

from windlass.model.families import Family
from windlass.model.services import Endpoint
from windlass.openflow.actions import Action, Ct, Learn, LearnLoad, LearnMatch, Resubmit, Set, ToGroup
from windlass.openflow.fields import ETH_TYPE, IPV4_SRC, IPV6_SRC, Term, ip
from windlass.openflow.flows import Bucket, Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import ENDPOINT, ENDPOINT_DNAT, LOW, NORMAL, SESSION_AFFINITY, STICKY_GROUP

CLIENT = {Family.IPV4: IPV4_SRC, Family.IPV6: IPV6_SRC}
LONGEST_TIMEOUT = 65535  # seconds that a flow can have; what is longer is for `seconds_of` and the agent
_SECONDS_BITS = 17


def ask(group: int, other: int) -> tuple[Action, ...]:
    """What ServiceLB does: to the endpoint that served this client last, or to one of the group. `other` is the group
    of the other policy; what is found second is what counts.
    """
    looks = (action for one in (other, group) for action in (STICKY_GROUP.load(one), Resubmit(SESSION_AFFINITY.number)))
    return *looks, goto(ENDPOINT_DNAT)


def share(family: Family, number: int, mask: int) -> tuple[Term, ...]:
    """The clients for whom one of several groups is: by their address, so that each is always with the same."""
    return ip(family), CLIENT[family](number, mask)


def flows(
    family: Family, group: int, other: int, endpoints: Mapping[int, tuple[Endpoint, Ct]], seconds: int, why: str
) -> Iterator[Flow]:
    """`endpoints`: by their numbers, each with the translation to it."""
    both = min(group, other)  # what an endpoint taught by one policy stays when only the other has it
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
            remember, translate, why=f"{why} at {endpoint.address}, which the client keeps"
        )
    yield ENDPOINT_DNAT.flow(LOW, STICKY_GROUP.is_(group)).then(
        ToGroup(group), why=f"{why}: no endpoint is remembered for this client, or it is gone"
    )


def bucket(number: int) -> Bucket:
    return Bucket(number, (Set(ENDPOINT.is_(number)), Resubmit(ENDPOINT_DNAT.number)))


def numbered(endpoints: Sequence[Endpoint]) -> dict[int, Endpoint]:
    """Each with a number that it keeps whatever other endpoints come and go (but for a rare clash of two)."""
    found: dict[int, Endpoint] = {}
    for endpoint in endpoints:
        number = crc32(endpoint.port.to_bytes(2), crc32(endpoint.packed)) & 0x7FFFFFFF
        while number in found or not number:  # 0 stands for none
            number += 1
        found[number] = endpoint
    return found


def seconds_of(cookie: int) -> int:
    """After how long a learned flow is to be forgotten."""
    return cookie & ((1 << _SECONDS_BITS) - 1)


def _cookie(group: int, number: int, seconds: int) -> int:
    """One for each endpoint, and another one when the timeout changes: what was taught with it goes with the last flow
    that teaches with it.
    """
    digest = blake2b(group.to_bytes(4) + number.to_bytes(4), digest_size=8).digest()
    return int.from_bytes(digest) >> _SECONDS_BITS << _SECONDS_BITS | seconds
