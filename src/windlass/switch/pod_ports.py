"""The Pods' ports of the bridge. Each port has in its external_ids what an agent needs after a restart.

Interfaces are created by the host, addresses are assigned by CNI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from windlass.model.families import IPAddress
from windlass.model.nodes import AttachedPod
from windlass.switch.bridge_differences import insert_port, interfaces_with, known_bridge, refuse_foreign, remove_port
from windlass.switch.bridge_specs import ROLE, Role
from windlass.switch.bridges import port_number
from windlass.switch.operations import Operation, Value, put_keys, ref, still_exists, update
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.rows import InterfaceRow, View
from windlass.switch.streams import SwitchUnreachableError

# Lower numbers are for the bridge's own ports, which may be added after the first Pod; OpenFlow reserves higher ones.
POD_NUMBERS: Final = range(16, 0xFF00)


@dataclass(frozen=True, slots=True)
class PodPort:
    interface: str
    container_id: str
    namespace: str
    name: str
    mac: str
    addresses: tuple[IPAddress, ...]
    netns: str = ""

    @property
    def external_ids(self) -> dict[str, str]:
        return {
            ROLE: Role.POD.value,
            _CONTAINER: self.container_id,
            _NAMESPACE: self.namespace,
            _NAME: self.name,
            _MAC: self.mac,
            _ADDRESSES: ",".join(map(str, self.addresses)),
            **({_NETNS: self.netns} if self.netns else {}),
        }

    def attached(self, ofport: int) -> AttachedPod:
        return AttachedPod(
            namespace=self.namespace,
            name=self.name,
            container_id=self.container_id,
            interface=self.interface,
            ofport=ofport,
            mac=self.mac,
            addresses=self.addresses,
        )


@dataclass(frozen=True, slots=True)
class AttachedPods:
    pods: tuple[AttachedPod, ...]
    problems: tuple[str, ...]  # a sentence for each Pod port whose external_ids are invalid


async def add_pod_port(db: Database, bridge: str, pod: PodPort) -> int:
    """Add the Pod's port and return its number. Idempotent; if it fails, no port is left."""
    await declare_pod_port(db, bridge, pod)
    try:
        return await port_number(db, bridge, pod.interface)
    except (SwitchRefusedError, SwitchUnreachableError):
        with suppress(SwitchUnreachableError):
            await delete_pod_port(db, bridge, pod.interface)
        raise


async def declare_pod_port(db: Database, bridge: str, pod: PodPort) -> None:
    """The first half of `add_pod_port`: the port is in the database, but may not have a number yet.

    On Windows nothing more is possible during ADD: the vNIC is created later, and with it the type `internal` and the
    number.
    """
    await db.change(lambda view: pod_port_difference(view, bridge, pod))


async def use_interface(db: Database, bridge: str, interface: str) -> int:
    """The second half on Windows, when the interface has appeared: its type becomes `internal`. Returns its number.

    With this type before that, ovs-vswitchd would create an interface of its own.
    """
    await db.carried_out(
        await db.change(
            lambda view: [
                update(row, {"type": _INTERNAL})
                for row in interfaces_with(view, bridge, Role.POD)
                if row.name == interface and row.type != _INTERNAL
            ]
        )
    )
    return await port_number(db, bridge, interface)


def unused_pod_ports(view: View, bridge: str) -> list[PodPort]:
    """Pod ports whose interface has not appeared, as far as is known: `use_interface` was not called."""
    unused = {row.name for row in interfaces_with(view, bridge, Role.POD) if row.type != _INTERNAL}
    return [port for port in pod_ports(view, bridge) if port.interface in unused]


async def delete_pod_port(db: Database, bridge: str, interface: str) -> None:
    """Idempotent. A port that is not a Pod's is left alone."""
    await db.change(
        lambda view: [
            operation
            for row in interfaces_with(view, bridge, Role.POD)
            if row.name == interface
            for operation in remove_port(view, bridge, row)
        ]
    )


def attached_pods(view: View, bridge: str) -> AttachedPods:
    """The Pods on the bridge, as recorded when they were attached."""
    pods: dict[str, AttachedPod] = {}
    problems = []
    for interface in sorted(interfaces_with(view, bridge, Role.POD), key=lambda row: row.name):
        try:
            pod = _pod(interface)
        except ValueError as error:
            problems.append(f"{bridge}: port {interface.name} is left alone: {error}")
            continue
        first = pods.setdefault(pod.container_id, pod)
        if first is not pod:
            problems.append(
                f"{bridge}: port {pod.interface} is left alone: container {pod.container_id} has port {first.interface}"
            )
    return AttachedPods(tuple(pods.values()), tuple(problems))


def pod_ports(view: View, bridge: str) -> list[PodPort]:
    """All that are valid, also those without a number at present."""
    ports = []
    for interface in interfaces_with(view, bridge, Role.POD):
        with suppress(ValueError):
            ports.append(_pod_port(interface))
    return ports


def pod_port_difference(view: View, bridge: str, pod: PodPort) -> list[Operation]:
    row = known_bridge(view, bridge)
    wanted = pod.external_ids
    operations: list[Operation] = []
    if existing := view.interfaces.get(pod.interface):
        refuse_foreign(view, bridge, pod.interface)
        if existing.external_ids.get(ROLE) != Role.POD.value:
            raise SwitchRefusedError(f"{bridge}: port {pod.interface} exists already, and is not a Pod's; left alone")
        if existing.external_ids.get(_CONTAINER) == pod.container_id:
            differing = {key: value for key, value in wanted.items() if existing.external_ids.get(key) != value}
            return [put_keys(existing, "external_ids", differing)] if differing else []
        # The former container is gone: a host cannot have two interfaces of one name.
        operations += remove_port(view, bridge, existing)
    number = _free_number(view.interfaces_of(bridge))
    columns: dict[str, Value] = {"name": pod.interface, "ofport_request": number, "external_ids": wanted}
    return [still_exists(row), *operations, *insert_port(ref(row.uuid), Role.POD, columns)]


_INTERNAL: Final = "internal"
_CONTAINER: Final = "windlass-container-id"
_NAMESPACE: Final = "windlass-pod-namespace"
_NAME: Final = "windlass-pod-name"
_MAC: Final = "windlass-mac"
_ADDRESSES: Final = "windlass-ips"
_NETNS: Final = "windlass-netns"
_IS_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def _free_number(interfaces: Iterable[InterfaceRow]) -> int:
    """The next higher one, so that a number is not reused soon; after the highest, the lowest free one."""
    asked = [number for row in interfaces for number in (row.ofport, row.ofport_request) if number is not None]
    taken = {number for number in asked if number in POD_NUMBERS}
    following = max(taken, default=POD_NUMBERS.start - 1) + 1
    if following in POD_NUMBERS:
        return following
    return next(number for number in POD_NUMBERS if number not in taken)


def _pod_port(interface: InterfaceRow) -> PodPort:
    """Raises ValueError with a text for `problems`."""
    ids = interface.external_ids
    missing = [key for key in (_CONTAINER, _NAMESPACE, _NAME, _MAC, _ADDRESSES) if not ids.get(key)]
    if missing:
        raise ValueError(f"external_ids lack {', '.join(missing)}")
    if not _IS_MAC.fullmatch(ids[_MAC]):
        raise ValueError(f"{_MAC}: {ids[_MAC]!r} is not a MAC address in lower case")
    try:
        addresses = tuple(ip_address(address) for address in ids[_ADDRESSES].split(","))
    except ValueError as error:
        raise ValueError(f"{_ADDRESSES}: {error}") from error
    return PodPort(
        interface=interface.name,
        container_id=ids[_CONTAINER],
        namespace=ids[_NAMESPACE],
        name=ids[_NAME],
        mac=ids[_MAC],
        addresses=addresses,
        netns=ids.get(_NETNS, ""),
    )


def _pod(interface: InterfaceRow) -> AttachedPod:
    port = _pod_port(interface)
    if interface.ofport is None or interface.ofport < 0:
        raise ValueError(f"Pod {port.namespace}/{port.name} has no port number: {interface.error or 'not yet'}")
    return port.attached(interface.ofport)
