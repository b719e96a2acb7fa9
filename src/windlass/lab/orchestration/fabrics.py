"""What a cluster needs of the software that makes its Pods reach each other. agents.py has the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.lab.control.publishers import Publisher
    from windlass.lab.scenarios.directives import ActionSpec
    from windlass.lab.scenarios.objects import LabNode, LabPod
    from windlass.model.families import IPAddress


class Fabric(Protocol):
    """Nodes are added with their underlay NICs in place and the objects published; Pods with an empty namespace."""

    @property
    def dataplane(self) -> str: ...

    @property
    def publisher(self) -> Publisher:
        """How its Nodes learn of the cluster's objects."""
        ...

    async def add_node(self, node: LabNode, namespace: str, configuration: Mapping[str, object]) -> None: ...

    async def remove_node(self, node: str) -> None: ...

    def serves(self, node: str) -> bool:
        """Whether Pods can be attached there now, and detached."""
        ...

    async def attach(self, pod: LabPod, namespace: str) -> tuple[IPAddress, ...]:
        """Returns the addresses that the Pod has now."""
        ...

    async def detach(self, pod: LabPod, namespace: str) -> None: ...

    async def act(self, action: ActionSpec, configuration: Mapping[str, object]) -> None: ...

    async def power_off(self, node: str) -> None:
        """All its processes end at once; its files stay."""
        ...

    async def power_on(self, node: str) -> None:
        """In a fresh namespace of the same name: as after a reboot, but for the agent, which `startAgent` starts."""
        ...

    async def converge(self) -> None:
        """Until every Node forwards by the objects as they are now."""
        ...

    async def end(self) -> None:
        """Ends all processes at once; nobody will need what they hold."""
        ...
