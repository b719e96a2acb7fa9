"""Pod links: an endpoint of the HNS network for each Pod, attached to the Pod's namespace.

Windows creates the interface `vEthernet (<endpoint>)` when the runtime starts a container, after CNI ADD has returned.
The switch cannot use it before.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_interface

from windlass.host import pod_differences
from windlass.host.pod_differences import listed
from windlass.host.protocol import AttachedLink, HostError, PodLink
from windlass.host.windows import networks
from windlass.host.windows.hcn import ComputeNetwork, HcnDocument, HcnKind
from windlass.host.windows.hcn_errors import AttachedError, NotAttachedError, NotFoundError
from windlass.host.windows.hns import HostNetworkService

_NO_ID = "00000000-0000-0000-0000-000000000000"
_INTERFACE = "eth0"  # the name that every runtime uses; Windows has no interface names inside a Pod


def attach(hcn: ComputeNetwork, hns: HostNetworkService, link: PodLink) -> None:
    endpoint = _find(hcn, link.host_interface)
    if endpoint is not None and differences(endpoint, link):
        _delete(hcn, endpoint)  # of an earlier request
        endpoint = None
    if endpoint is None:
        endpoint = _create(hcn, link)
    try:
        _join(hcn, hns, endpoint, link)
    except HostError:
        with suppress(HostError):  # report the first error
            _delete(hcn, endpoint)
        raise


def detach(hcn: ComputeNetwork, host_interface: str) -> None:
    endpoint = _find(hcn, host_interface)
    if endpoint is not None:
        _delete(hcn, endpoint)


def check(hcn: ComputeNetwork, link: PodLink, mtu: int | None) -> tuple[str, ...]:
    """`mtu`: of the interface; None if it has not appeared yet."""
    endpoint = _find(hcn, link.host_interface)
    if endpoint is None:
        return (f"there is no interface {link.host_interface}",)
    found = differences(endpoint, link)
    if not link.container and not networks.same_id(_namespace(endpoint), link.namespace):
        found.append(f"{link.host_interface} is not in the namespace {link.namespace}")
    if mtu is not None:
        found += pod_differences.sentences(link, {"MTU": (str(mtu), str(link.mtu))})
    return tuple(found)


def attached(hcn: ComputeNetwork) -> tuple[AttachedLink, ...]:
    network = networks.find(hcn)
    if network is None:
        return ()
    found = (AttachedLink(e["Name"], _INTERFACE, _namespace(e)) for e in networks.endpoints(hcn, network))
    return tuple(sorted(found, key=lambda link: link.host_interface))


def differences(endpoint: HcnDocument, link: PodLink) -> list[str]:
    """Differences that need a new endpoint, because HNS cannot change them."""
    addresses = (
        ip_interface((found["IpAddress"], found["PrefixLength"])) for found in endpoint.get("IpConfigurations", ())
    )
    gateways = (ip_address(route["NextHop"]) for route in endpoint.get("Routes", ()))
    compared = {
        "MAC": (endpoint.get("MacAddress", "").replace("-", ":").lower(), link.mac),
        "addresses": (listed(addresses), listed(link.addresses)),
        "gateways": (listed(gateways), listed(link.gateways)),
    }
    return pod_differences.sentences(link, compared)


def _create(hcn: ComputeNetwork, link: PodLink) -> HcnDocument:
    network = networks.find(hcn)
    if network is None:
        raise HostError(f"HNS has no network {networks.NAME}; the agent will create it again")
    dns = link.dns
    document = {
        "Name": link.host_interface,
        "HostComputeNetwork": network["ID"],
        "MacAddress": link.mac.replace(":", "-").upper(),
        "IpConfigurations": [
            {"IpAddress": str(address.ip), "PrefixLength": address.network.prefixlen} for address in link.addresses
        ],
        "Routes": [
            {"NextHop": str(gateway), "DestinationPrefix": "0.0.0.0/0" if gateway.version == 4 else "::/0"}
            for gateway in link.gateways
        ],
        "Dns": {
            "Domain": dns.domain,
            "Search": dns.searches,
            "ServerList": dns.servers,
            "Options": dns.options,
        },
    }
    return hcn.create(HcnKind.ENDPOINT, document, network["ID"])


def _join(hcn: ComputeNetwork, hns: HostNetworkService, endpoint: HcnDocument, link: PodLink) -> None:
    """containerd passes the Pod's namespace; docker passes each container of a Pod, and each needs the endpoint."""
    if link.container:
        hns.post(f"/endpoints/{endpoint['ID']}/attach", {"ContainerID": link.container, "SystemType": "Container"})
        return
    if networks.same_id(_namespace(endpoint), link.namespace):
        return
    try:
        _change_members(hcn, link.namespace, endpoint, "Add")
    except NotFoundError as error:
        raise HostError(f"could not enter {link.namespace}: {error}") from error
    except AttachedError as error:
        if not networks.same_id(_namespace(hcn.properties(HcnKind.ENDPOINT, endpoint["ID"])), link.namespace):
            raise HostError(f"could not enter {link.namespace}: {error}") from error


def _delete(hcn: ComputeNetwork, endpoint: HcnDocument) -> None:
    if namespace := _namespace(endpoint):
        with suppress(NotFoundError, NotAttachedError):  # the runtime may have deleted its namespace first
            _change_members(hcn, namespace, endpoint, "Remove")
    hcn.delete(HcnKind.ENDPOINT, endpoint["ID"])


def _change_members(hcn: ComputeNetwork, namespace: str, endpoint: HcnDocument, request: str) -> None:
    change = {"ResourceType": "Endpoint", "RequestType": request, "Settings": {"EndpointId": endpoint["ID"]}}
    hcn.modify(HcnKind.NAMESPACE, namespace, change)


def _find(hcn: ComputeNetwork, name: str) -> HcnDocument | None:
    return next(iter(hcn.all(HcnKind.ENDPOINT, Name=name)), None)


def _namespace(endpoint: HcnDocument) -> str:
    """The endpoint's namespace; empty if it has none."""
    namespace = str(endpoint.get("HostComputeNamespace") or "")
    return "" if networks.same_id(namespace, _NO_ID) else namespace
