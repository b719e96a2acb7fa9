"""The attachment of a Pod, and the interfaces of the components that carry it out. No I/O.

The agent implements `PodPorts` and `PodProgrammer`; `HostPods` of the host creates links. Removing is idempotent: it
succeeds if there is nothing to remove.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Protocol

from windlass.host.protocol import PodDns, PodLink
from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.model.nodes import AttachedPod, mac_for
from windlass.switch.pod_ports import PodPort


@dataclass(frozen=True, slots=True, order=True)
class Attachment:
    """The pair that identifies an attachment in CNI."""

    container_id: str
    ifname: str  # the interface inside the Pod


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """What all Pods of this Node have in common."""

    pod_cidrs: Mapping[Family, IPNetwork]  # in the Node's order: the first family is also the first of a Pod
    mtu: int  # the MTU of packets that Pods send
    link_mtu: int  # the MTU of packets that Pods receive: replies to their Node have the MTU of the NIC
    userspace: bool  # the switch runs its userspace datapath

    def holds(self, address: IPAddress) -> bool:
        return any(address in cidr for cidr in self.pod_cidrs.values())

    def gateway(self, family: Family) -> IPAddress:
        return self.pod_cidrs[family].network_address + 1


class PodPorts(Protocol):
    async def add_pod_port(self, port: PodPort, uid: str = "") -> int | None:
        """Make the interface a port of the bridge, unless it is one. Returns its OpenFlow number.

        None if the host creates the interface later. Then the port gets its number and its flows by itself; `uid` is
        for these.
        """

    async def delete_pod_port(self, interface: str) -> None: ...

    async def list_pod_ports(self) -> Sequence[PodPort]:
        """All Pod ports in the database, including those of earlier agents and those whose interface is gone."""


class NotReadyError(Exception):
    """The agent cannot attach Pods yet. The message says what it waits for."""


class PodProgrammer(Protocol):
    def pod_network(self) -> PodNetwork:
        """Raises NotReadyError until the agent can attach Pods."""

    async def programmed(self, pod: AttachedPod, uid: str = "") -> None:
        """Returns when the switch has the flows of this Pod. Does nothing for a Pod that is programmed already.

        `uid`: of the Pod object; another Pod may have had the same name.
        """

    async def forget(self, container_id: str) -> None:
        """Returns when the switch no longer has the flows of this Pod."""


def interface_name(pod_name: str, attachment: Attachment) -> str:
    """The name of the host interface: the start of the Pod's name, and a digest (30 bits) to make it unique."""
    identity = hashlib.sha256(f"{attachment.container_id}/{attachment.ifname}".encode()).digest()
    digest = base64.b32encode(identity).decode().lower()[:6]
    readable = re.sub("[^a-z0-9]", "-", pod_name.lower())[:8].rstrip("-")
    return f"{readable}-{digest}"


def belongs_to(port: PodPort, attachments: Iterable[Attachment]) -> bool:
    """Whether one of these owns the port. The switch does not store CNI_IFNAME, but the port's name depends on it."""
    return any(
        attachment.container_id == port.container_id and interface_name(port.name, attachment) == port.interface
        for attachment in attachments
    )


def pod_mac(addresses: Iterable[IPAddress]) -> str:
    """Derived from the IPv4 address, or else the IPv6 address, so that every Node can compute it."""
    return mac_for(min(addresses, key=lambda address: address.version))


def pod_link(
    network: PodNetwork,
    port: PodPort,
    attachment: Attachment,
    netns: str,
    dns: PodDns = PodDns(),  # noqa: B008 - frozen
    container: str = "",
) -> PodLink:
    """The link that this Pod should have. Its addresses must be in the PodCIDRs."""
    families = [family_of(address) for address in port.addresses]
    return PodLink(
        namespace=netns,
        interface=attachment.ifname,
        host_interface=port.interface,
        mac=port.mac,
        addresses=tuple(
            ip_interface(f"{address}/{network.pod_cidrs[family].prefixlen}")
            for address, family in zip(port.addresses, families, strict=True)
        ),
        gateways=tuple(network.gateway(family) for family in families),
        mtu=network.mtu,
        link_mtu=network.link_mtu,
        userspace=network.userspace,
        dns=dns,
        container=container,
    )
