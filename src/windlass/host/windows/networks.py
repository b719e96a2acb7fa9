"""The HNS network on the uplink, whose Hyper-V switch has Open vSwitch as an extension.

When HNS creates the network, it moves the addresses of the NIC to its own interface, `vEthernet (<NIC>)`, which becomes
the bridge interface. HNS sometimes loses its networks, for example at a reboot: Windlass then creates it again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from ipaddress import IPv4Network

from windlass.host.protocol import HostError
from windlass.host.windows.hcn import ComputeNetwork, HcnDocument, HcnKind
from windlass.host.windows.hcn_errors import AdapterNotFoundError
from windlass.host.windows.hns import HostNetworkService
from windlass.model.families import IPNetwork

NAME = "windlass"
EXTENSION = "583CC151-73EC-4A6A-8B47-578297AD7623"  # Open vSwitch's
_SECONDS_TO_RENAME = 20
_SECONDS_FOR_POWERSHELL = 50  # it starts slowly on a busy machine


def interface_of(name: str) -> str:
    """The name that Windows gives to the interface of a NIC or endpoint in an HNS network."""
    return f"vEthernet ({name})"


def find(hcn: ComputeNetwork) -> HcnDocument | None:
    return next(iter(hcn.all(HcnKind.NETWORK, Name=NAME)), None)


def adapter_of(network: HcnDocument) -> str | None:
    """The NIC of the network."""
    for policy in network.get("Policies", ()):
        if policy.get("Type") == "NetAdapterName":
            return str(policy["Settings"]["NetworkAdapterName"])
    return None


def create(hcn: ComputeNetwork, uplink: str, pod_cidrs: Collection[IPNetwork]) -> HcnDocument:
    document = {
        "Name": NAME,
        "Type": "Transparent",
        "Policies": [{"Type": "NetAdapterName", "Settings": {"NetworkAdapterName": uplink}}],
        "Ipams": [{"Type": "Static", "Subnets": [_subnet(cidr) for cidr in _served(pod_cidrs)]}],
    }
    try:
        return hcn.create(HcnKind.NETWORK, document)
    except AdapterNotFoundError as error:
        raise HostError(
            f"HNS cannot use {uplink}: {error}. It must be a physical NIC that no other switch uses "
            "(Get-VMSwitch lists them)"
        ) from error


def require_subnets(network: HcnDocument, pod_cidrs: Collection[IPNetwork]) -> None:
    """Raises HostError if the subnets differ: HNS cannot change them, and endpoints need an address in one of them."""
    has = {str(subnet["IpAddressPrefix"]) for ipam in network.get("Ipams", ()) for subnet in ipam.get("Subnets", ())}
    wanted = {str(cidr) for cidr in _served(pod_cidrs)}
    if not wanted <= has:
        raise HostError(
            f"HNS network {NAME} has the subnets {', '.join(sorted(has)) or 'none'}, and the Node's PodCIDR is "
            f"{', '.join(sorted(wanted))}: drain the Node, stop the agent, run `windlass release`, start the agent"
        )


def endpoints(hcn: ComputeNetwork, network: HcnDocument) -> list[HcnDocument]:
    found = hcn.all(HcnKind.ENDPOINT)
    return [endpoint for endpoint in found if same_id(endpoint.get("HostComputeNetwork", ""), network["ID"])]


def delete(hcn: ComputeNetwork, network: HcnDocument) -> None:
    """Deletes the endpoints of Pods first: HNS keeps a network that has endpoints."""
    for endpoint in endpoints(hcn, network):
        hcn.delete(HcnKind.ENDPOINT, endpoint["ID"])
    hcn.delete(HcnKind.NETWORK, network["ID"])


def enable_extension(hns: HostNetworkService, network: HcnDocument) -> bool:
    """Returns whether it was disabled. Call it only when the Node has its addresses: DHCP fails without flows."""
    path = f"/networks/{network['ID']}"
    extensions = hns.get(path).get("Extensions", ())
    extension = next((found for found in extensions if same_id(found.get("Id", ""), EXTENSION)), None)
    if extension is None:
        raise HostError(
            "the Hyper-V switch has no Open vSwitch extension: install its signed driver "
            "(netcfg -q ovsext says whether it is installed)"
        )
    if extension.get("IsEnabled"):
        return False
    hns.post(path, {"Extensions": [{"Id": EXTENSION, "IsEnabled": True}]})
    return True


def rename_interface(netsh: str, name: str, new_name: str) -> None:
    """By netsh: the only other documented way is PowerShell, which takes seconds to start."""
    arguments = ("interface", "set", "interface", f"name={name}", f"newname={new_name}")
    _run_program(f"could not rename {name} to {new_name}", _SECONDS_TO_RENAME, netsh, *arguments)


def turn_on_segment_merging(powershell: str) -> None:
    """Software RSC: the Hyper-V switch merges TCP segments, so transfers are faster. Only PowerShell can set it."""
    arguments = ("-NoProfile", "-NonInteractive", "-Command", f"Set-VMSwitch -Name {NAME} -EnableSoftwareRsc $true")
    _run_program(
        f"could not turn on software RSC of the Hyper-V switch {NAME}, so transfers are slower",
        _SECONDS_FOR_POWERSHELL,
        *(powershell, *arguments),
    )


def _run_program(failure: str, seconds: float, *command: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{failure}: {error}") from error
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip()
        raise HostError(f"{failure}: {said or f'{command[0]} ended with {done.returncode}'}")


def same_id(one: str, other: str) -> bool:
    """HNS writes GUIDs in either case, with or without braces."""
    return one.strip("{}").lower() == other.strip("{}").lower()


def _served(pod_cidrs: Iterable[IPNetwork]) -> list[IPv4Network]:
    """Windows Nodes support IPv4 only."""
    return [cidr for cidr in pod_cidrs if isinstance(cidr, IPv4Network)]


def _subnet(cidr: IPv4Network) -> HcnDocument:
    gateway = str(cidr.network_address + 1)
    return {"IpAddressPrefix": str(cidr), "Routes": [{"NextHop": gateway, "DestinationPrefix": "0.0.0.0/0"}]}
