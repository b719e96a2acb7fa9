"""What only one Service can have (a ClusterIP, an external address with a port, a NodePort), and who has it. Pure.

Who has it keeps it while it asks for it, so that a mistake in one Service never takes traffic from another. Where
nobody has it yet, the Service that was made first gets it. An external address never takes from a ClusterIP: anybody
who may write a Service can write any address there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from windlass.model.families import Family, IPAddress
from windlass.model.services import Frontend, Protocol, Reach, Service, ServicePort

# An address and a port (0: all ports, it is a ClusterIP); of a NodePort, the family instead. And the protocol.
Claim = tuple[bytes | int, int, int]
Order = Callable[[str], tuple[float, str]]  # of two Services, named by their keys: which is the earlier?


class Claims:
    """Who has what. The work of a change is that of its Services, and of those that want what it gives or takes."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[Claim, ...]] = {}  # of each Service
        self._holders: dict[Claim, str] = {}
        self._waiting: dict[Claim, set[str]] = {}  # the Services that want what another one has
        self._outside: dict[Claim, set[str]] = {}  # those with an external address, by the ClusterIP that it might be

    def settle(self, changed: Mapping[str, Service | None], order: Order) -> set[str]:
        """Takes note of these Services (None: gone), and names all others for which something is decided anew."""
        before = {key: self._claims.pop(key, ()) for key in changed}
        self._claims |= {key: tuple(_claims(service)) for key, service in changed.items() if service}
        given_up: set[Claim] = set()
        for key, claims in before.items():
            for claim in set(claims).difference(self._claims.get(key, ())):
                if self._holders.get(claim) == key:
                    del self._holders[claim]
                    given_up.add(claim)
                else:
                    _remove(self._waiting, claim, key)
            for address in _outside(claims):
                _remove(self._outside, address, key)
        decided = set(given_up)
        for key in sorted(changed, key=order):
            for claim in self._claims.get(key, ()):
                if claim in given_up or self._holders.get(claim, key) != key:
                    self._waiting.setdefault(claim, set()).add(key)
                elif claim not in self._holders:
                    self._holders[claim] = key
                    decided.add(claim)
            for address in _outside(self._claims.get(key, ())):
                self._outside.setdefault(address, set()).add(key)
        told = {key for claim in decided & self._outside.keys() for key in self._outside[claim]}
        for claim in given_up & self._waiting.keys():
            told |= self._waiting[claim]
            self._holders[claim] = heir = min(self._waiting[claim], key=order)
            _remove(self._waiting, claim, heir)
        return told - changed.keys()

    def granted(self, service: Service) -> tuple[Service, list[str]]:
        """The Service without what another one has, and a sentence for each such thing."""
        key = service.key
        lost = {claim: holder for claim in self._claims[key] if (holder := self._holder(claim)) != key}
        if not lost:
            return service, []
        sentences = dict.fromkeys(  # one for both families of a NodePort
            f"{_words(claim)} belongs to Service {holder}; the rest of the Service is served"
            for claim, holder in lost.items()
        )
        return _without(service, lost), list(sentences)

    def _holder(self, claim: Claim) -> str:
        return self._holders.get(_whole(claim)) or self._holders[claim]


def _remove(keys: dict[Claim, set[str]], claim: Claim, key: str) -> None:
    keys[claim].remove(key)
    if not keys[claim]:
        del keys[claim]


def _claims(service: Service) -> Iterator[Claim]:
    for address in service.cluster_ips:
        yield _of_cluster_ip(address)
    for port in service.ports:
        for frontend in port.frontends:
            if frontend.reach is not Reach.CLUSTER_IP:
                yield _of_frontend(frontend, port)
    yield from _of_health_check(service)


def _of_cluster_ip(address: IPAddress) -> Claim:
    """With all its ports: the unused ones are refused in the name of its Service."""
    return address.packed, 0, 0


def _of_frontend(frontend: Frontend, port: ServicePort) -> Claim:
    return frontend.address.packed if frontend.address else port.family.value, frontend.port, port.protocol.value


def _of_health_check(service: Service) -> Iterator[Claim]:
    if service.health_check_port:
        for family in Family:
            yield family.value, service.health_check_port, Protocol.TCP.value


def _whole(claim: Claim) -> Claim:
    """The address of this claim as a ClusterIP."""
    return claim[0], 0, 0


def _outside(claims: Iterable[Claim]) -> set[Claim]:
    return {_whole(claim) for claim in claims if isinstance(claim[0], bytes) and claim[1]}


def _without(service: Service, lost: Mapping[Claim, str]) -> Service:
    def has(frontend: Frontend, port: ServicePort) -> bool:
        if frontend.address and frontend.reach is Reach.CLUSTER_IP:
            return _of_cluster_ip(frontend.address) not in lost
        return _of_frontend(frontend, port) not in lost

    return replace(
        service,
        ports=tuple(
            replace(port, frontends=tuple(frontend for frontend in port.frontends if has(frontend, port)))
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
