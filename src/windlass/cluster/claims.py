"""Settles conflicts between Services: a ClusterIP, an external address with a port and a NodePort have one owner. Pure.

The owner keeps a frontend as long as it claims it, so that a mistake in one Service never takes traffic from another. A
frontend without an owner goes to the Service that was created first. An external address never takes traffic from a
ClusterIP: every user with the right to write Services can write any external address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from windlass.model.families import Family, IPAddress
from windlass.model.services import Frontend, Protocol, Reach, ServedPort, ServedService

# An address (the family, for a NodePort), a port (0 for all ports of a ClusterIP) and a protocol.
Claim = tuple[bytes | int, int, int]
Order = Callable[[str], tuple[float, str]]  # sort key of a Service: the earlier one wins


class FrontendClaims:
    """The owner of each claim. The work of a change grows with the changed Services and those with equal claims."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[Claim, ...]] = {}  # by Service
        self._owners: dict[Claim, str] = {}
        self._waiting: dict[Claim, set[str]] = {}  # the Services that claim what another one owns
        self._external: dict[Claim, set[str]] = {}  # Services with an external IP, by the claim of an equal ClusterIP

    def settle(self, changed: Mapping[str, ServedService | None], order: Order) -> set[str]:
        """Update the claims of these Services (None: deleted). Returns the keys of other Services that are affected."""
        claimed = {key: tuple(_claims(service)) if service else () for key, service in changed.items()}
        before = {key: held for key, claims in claimed.items() if (held := self._claims.get(key, ())) != claims}
        if not before:  # most changes are of endpoints
            return set()
        for key in before:
            self._claims.pop(key, None)
            if claimed[key]:
                self._claims[key] = claimed[key]
        given_up: set[Claim] = set()
        for key, claims in before.items():
            for claim in set(claims).difference(claimed[key]):
                if self._owners.get(claim) == key:
                    del self._owners[claim]
                    given_up.add(claim)
                else:
                    _remove(self._waiting, claim, key)
            for address in _external_addresses(claims):
                _remove(self._external, address, key)
        decided = set(given_up)
        for key in sorted(before, key=order):
            for claim in claimed[key]:
                if claim in given_up or self._owners.get(claim, key) != key:
                    self._waiting.setdefault(claim, set()).add(key)
                elif claim not in self._owners:
                    self._owners[claim] = key
                    decided.add(claim)
            for address in _external_addresses(claimed[key]):
                self._external.setdefault(address, set()).add(key)
        affected = {key for claim in decided & self._external.keys() for key in self._external[claim]}
        for claim in given_up & self._waiting.keys():
            affected |= self._waiting[claim]
            self._owners[claim] = heir = min(self._waiting[claim], key=order)
            _remove(self._waiting, claim, heir)
        return affected - changed.keys()

    def granted(self, service: ServedService) -> tuple[ServedService, list[str]]:
        """The Service without the frontends that another one owns, and a sentence about each of them."""
        key = service.key
        lost = {claim: owner for claim in self._claims.get(key, ()) if (owner := self._owner(claim)) != key}
        if not lost:
            return service, []
        sentences = dict.fromkeys(  # one for both families of a NodePort
            f"{_words(claim)} belongs to Service {owner}; the rest of the Service is served"
            for claim, owner in lost.items()
        )
        return _without(service, lost), list(sentences)

    def _owner(self, claim: Claim) -> str:
        return self._owners.get(_as_cluster_ip(claim)) or self._owners[claim]


def _remove(keys: dict[Claim, set[str]], claim: Claim, key: str) -> None:
    keys[claim].remove(key)
    if not keys[claim]:
        del keys[claim]


def _claims(service: ServedService) -> Iterator[Claim]:
    for address in service.cluster_ips:
        yield _of_cluster_ip(address)
    for port in service.ports:
        for frontend in port.frontends:
            if frontend.reach is not Reach.CLUSTER_IP:
                yield _of_frontend(frontend, port)
    yield from _of_health_check(service)


def _of_cluster_ip(address: IPAddress) -> Claim:
    """Covers all ports: connections to unused ports are refused on behalf of the Service."""
    return address.packed, 0, 0


def _of_frontend(frontend: Frontend, port: ServedPort) -> Claim:
    return frontend.address.packed if frontend.address else port.family.value, frontend.port, port.protocol.value


def _of_health_check(service: ServedService) -> Iterator[Claim]:
    if service.health_check_port:
        for family in Family:
            yield family.value, service.health_check_port, Protocol.TCP.value


def _as_cluster_ip(claim: Claim) -> Claim:
    """The claim that a ClusterIP of the same address makes."""
    return claim[0], 0, 0


def _external_addresses(claims: Iterable[Claim]) -> set[Claim]:
    return {_as_cluster_ip(claim) for claim in claims if isinstance(claim[0], bytes) and claim[1]}


def _without(service: ServedService, lost: Mapping[Claim, str]) -> ServedService:
    def keeps(frontend: Frontend, port: ServedPort) -> bool:
        if frontend.address and frontend.reach is Reach.CLUSTER_IP:
            return _of_cluster_ip(frontend.address) not in lost
        return _of_frontend(frontend, port) not in lost

    return replace(
        service,
        ports=tuple(
            replace(port, frontends=tuple(frontend for frontend in port.frontends if keeps(frontend, port)))
            for port in service.ports
        ),
        cluster_ips=tuple(address for address in service.cluster_ips if _of_cluster_ip(address) not in lost),
        health_check_port=0 if lost.keys() & set(_of_health_check(service)) else service.health_check_port,
    )


def _words(claim: Claim) -> str:
    where, port, protocol = claim
    if isinstance(where, int):
        return f"NodePort {port}/{Protocol(protocol).name}"
    address = ip_address(where)
    if not port:
        return f"ClusterIP {address}"
    return f"{f'[{address}]' if address.version == 6 else address}:{port}/{Protocol(protocol).name}"
