"""The output for the runtime, in the requested version of the CNI specification. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.cni.configurations import SUPPORTED_VERSIONS, Dns, Fields
from windlass.cni.errors import RequestError
from windlass.cni.requests import AddRequest
from windlass.host.protocol import PodLink
from windlass.model.families import Family, family_of

_EVERYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}


def attached(add: AddRequest, link: PodLink) -> bytes:
    """The result of ADD, appended to the results of earlier plugins of a chain."""
    before = len(add.previous.interfaces)
    interfaces: list[Fields] = [
        {"name": link.host_interface, **_mtu(add.version, link.link_mtu)},
        {"name": link.interface, "mac": link.mac, "sandbox": link.namespace, **_mtu(add.version, link.link_mtu)},
    ]
    addressed = list(zip(link.addresses, link.gateways, strict=True))
    ips: list[Fields] = [
        {
            **_ip_version(add.version, family_of(address)),
            "address": str(address),
            "gateway": str(gateway),
            "interface": before + 1,
        }
        for address, gateway in addressed
    ]
    routes: list[Fields] = [
        {"dst": _EVERYWHERE[family_of(gateway)], "gw": str(gateway), **_mtu(add.version, link.mtu)}
        for _, gateway in addressed
    ]
    return _json(
        {
            "cniVersion": add.version,
            "interfaces": [*add.previous.interfaces, *interfaces],
            "ips": [*add.previous.ips, *ips],
            "routes": [*add.previous.routes, *routes],
            "dns": add.dns if add.dns != Dns() else add.previous.dns or Dns(),
        }
    )


def versions(asked: str) -> bytes:
    return _json({"cniVersion": asked, "supportedVersions": SUPPORTED_VERSIONS})


def failed(version: str, error: RequestError) -> bytes:
    return _json({"cniVersion": version, "code": int(error.code), "msg": error.msg, "details": error.details})


def _mtu(version: str, mtu: int) -> dict[str, int]:
    """Interfaces and routes have an MTU since 1.1.0."""
    return {"mtu": mtu} if version == "1.1.0" else {}


def _ip_version(version: str, family: Family) -> dict[str, str]:
    """An address has a version until 0.4.0."""
    return {"version": str(family.value)} if version in {"0.3.1", "0.4.0"} else {}


def _json(value: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
