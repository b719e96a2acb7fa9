"""What only one Service can have (a ClusterIP, an address with a port, a NodePort), and which one has it. Pure.

Who has it keeps it while it asks for it, so that a mistake in one Service never takes traffic from another. Where
nobody has it yet, the Service that was made first gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from windlass.cluster.objects import Problem
from windlass.model.families import Family, IPAddress
from windlass.model.services import Frontend, Protocol, Service

Claim = tuple[bytes | int, int, int]  # address (the family, for a NodePort), port, protocol; port 0: a whole ClusterIP
Order = Callable[[str], tuple[float, str]]  # by which of two Services, named by their keys, is the earlier one


class Claims:
    """Who has what. The work of a change is that of its Services, and of those that wait for what they give up."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[Claim, ...]] = {}
        self._holders: dict[Claim, str] = {}
        self._waiting: dict[Claim, set[str]] = {}

    def settle(self, changed: Mapping[str, Service | None], order: Order) -> set[str]:
        """Takes note of these Services (None: gone), and names all others for which something is decided anew."""
        before = {key: self._claims.pop(key, ()) for key in changed}
        self._claims |= {key: _claims(service) for key, service in changed.items() if service}
        given_up: set[Claim] = set()
        for key, claims in before.items():
            for claim in set(claims).difference(self._claims.get(key, ())):
                if self._holders.get(claim) == key:
                    del self._holders[claim]
                    given_up.add(claim)
                else:
                    self._leave(claim, key)
        for key in sorted(changed, key=order):
            for claim in self._claims.get(key, ()):
                if claim in given_up or self._holders.setdefault(claim, key) != key:
                    self._waiting.setdefault(claim, set()).add(key)
        told: set[str] = set()
        for claim in given_up & self._waiting.keys():
            told |= self._waiting[claim]
            self._holders[claim] = heir = min(self._waiting[claim], key=order)
            self._leave(claim, heir)
        return told - changed.keys()

    def granted(self, service: Service) -> tuple[Service, list[Problem]]:
        """The Service without what another one has."""
        key = service.key
        lost = {claim: self._holders[claim] for claim in self._claims[key] if self._holders[claim] != key}
        if not lost:
            return service, []
        sentences = dict.fromkeys(  # one for both families of a NodePort
            f"{_words(claim)} belongs to Service {holder}; the rest of the Service is served"
            for claim, holder in lost.items()
            if claim[1] == 0 or (claim[0], 0, 0) not in lost
        )
        return _without(service, lost), [Problem(f"Service {key}", sentence) for sentence in sentences]

    def _leave(self, claim: Claim, key: str) -> None:
        self._waiting[claim].remove(key)
        if not self._waiting[claim]:
            del self._waiting[claim]


def _claims(service: Service) -> tuple[Claim, ...]:
    found = dict.fromkeys(_whole(address) for address in service.cluster_ips)
    for port in service.ports:
        for frontend in port.frontends:
            found[_one(frontend, port.family, port.protocol)] = None
    if service.health_check_port:
        found |= dict.fromkeys(_health(service))
    return tuple(found)


def _whole(cluster_ip: IPAddress) -> Claim:
    """Its other ports are refused in its Service's name: it cannot be two Services'."""
    return cluster_ip.packed, 0, 0


def _one(frontend: Frontend, family: Family, protocol: Protocol) -> Claim:
    return frontend.address.packed if frontend.address else family.value, frontend.port, protocol.value


def _health(service: Service) -> list[Claim]:
    return [(family.value, service.health_check_port, Protocol.TCP.value) for family in Family]


def _without(service: Service, lost: Mapping[Claim, str]) -> Service:
    cluster_ips = tuple(address for address in service.cluster_ips if _whole(address) not in lost)
    gone = set(service.cluster_ips).difference(cluster_ips)
    ports = tuple(
        replace(
            port,
            frontends=tuple(
                frontend
                for frontend in port.frontends
                if frontend.address not in gone and _one(frontend, port.family, port.protocol) not in lost
            ),
        )
        for port in service.ports
    )
    health_check_port = 0 if lost.keys() & _health(service) else service.health_check_port
    return replace(service, ports=ports, cluster_ips=cluster_ips, health_check_port=health_check_port)


def _words(claim: Claim) -> str:
    where, port, protocol = claim
    if isinstance(where, int):
        return f"NodePort {port}/{Protocol(protocol).name}"
    address = ip_address(where)
    if not port:
        return f"ClusterIP {address}"
    return f"{f'[{address}]' if address.version == 6 else address}:{port}/{Protocol(protocol).name}"
