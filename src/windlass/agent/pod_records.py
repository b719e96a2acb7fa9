"""A small file for each attached Pod, so that its port can be made again when Open vSwitch's database is lost.

Whether a recorded Pod still exists is not decided here but by the host's links.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Lock, get_ident
from typing import Final

import msgspec

from windlass import files
from windlass.switch.pod_ports import PodPort

FOLDER: Final = "pods"  # in the agent's state directory


class PodRecords:
    """The records of one Node, in memory and on disk. They are read once: no other process writes them.

    `save` and `forget` may be called in threads. A mapping that `ports` returned does not change afterwards.
    """

    def __init__(self, state_directory: Path) -> None:
        self._folder = state_directory / FOLDER
        self.ports: dict[str, PodPort] = {}  # by interface on the host
        self._unreadable: dict[str, str] = {}  # sentences, by interface
        self._changing = Lock()  # held while either of them changes
        with suppress(FileNotFoundError):
            for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
                self._load(file)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._unreadable.values())

    @property
    def interfaces(self) -> frozenset[str]:
        """The interfaces of all records, including those that cannot be read."""
        return frozenset(self.ports) | frozenset(self._unreadable)

    def save(self, port: PodPort) -> None:
        """The record is on the disk when this returns. On OSError the old record is unchanged."""
        if self.ports.get(port.interface) == port:
            return
        # An ADD and a full pass may save the record of one port at the same time.
        content = msgspec.json.encode(_written(port)) + b"\n"
        files.write(self._file(port.interface), content, writer=str(get_ident()))
        self._now(port.interface, {port.interface: port})

    def forget(self, interface: str) -> None:
        """A crash may bring the record back; it is stale then, for its link is gone."""
        self._now(interface, {})
        self._file(interface).unlink(missing_ok=True)

    def _now(self, interface: str, port: Mapping[str, PodPort]) -> None:
        with self._changing:
            self.ports = {key: other for key, other in self.ports.items() if key != interface} | dict(port)
            self._unreadable = {key: said for key, said in self._unreadable.items() if key != interface}

    def _file(self, interface: str) -> Path:
        return self._folder / f"{interface}{_SUFFIX}"

    def _load(self, file: Path) -> None:
        interface = file.name.removesuffix(_SUFFIX)
        try:
            port = _read(interface, msgspec.json.decode(file.read_bytes(), type=_StoredPod))
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            self._unreadable[interface] = (
                f"{file} cannot be read: {error}; should Open vSwitch lose its database, the Pod with host interface "
                f"{interface} has to be recreated; the agent rewrites the record while the bridge has the Pod's port"
            )
        else:
            self.ports[interface] = port


_SUFFIX: Final = ".json"


class _StoredPod(msgspec.Struct, rename="camel"):
    """The interface is the file's name."""

    container_id: str
    namespace: str
    name: str
    mac: str
    addresses: list[str]
    netns: str = ""


def _written(port: PodPort) -> _StoredPod:
    return _StoredPod(
        container_id=port.container_id,
        namespace=port.namespace,
        name=port.name,
        mac=port.mac,
        addresses=[str(address) for address in port.addresses],
        netns=port.netns,
    )


def _read(interface: str, record: _StoredPod) -> PodPort:
    return PodPort(
        interface=interface,
        container_id=record.container_id,
        namespace=record.namespace,
        name=record.name,
        mac=record.mac,
        addresses=tuple(ip_address(address) for address in record.addresses),
        netns=record.netns,
    )
