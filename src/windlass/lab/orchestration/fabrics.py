"""The interface between a running cluster and the software that connects its Pods. agents.py implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.lab.control.publishers import Publisher
    from windlass.lab.scenarios.directives import ActionSpec
    from windlass.lab.scenarios.objects import LabNode, LabPod
    from windlass.model.families import IPAddress


class Fabric(Protocol):
    """A Node is added when its NICs exist and the objects are published; a Pod when its namespace exists."""

    @property
    def dataplane(self) -> str: ...

    @property
    def publisher(self) -> Publisher:
        """How its Nodes learn of the cluster's objects."""
        ...

    async def add_node(self, node: LabNode, namespace: str, configuration: Mapping[str, object]) -> None: ...

    async def remove_node(self, node: str) -> None: ...

    def serves(self, node: str) -> bool:
        """Whether Pods can be attached and detached there now."""
        ...

    async def attach(self, pod: LabPod, namespace: str) -> tuple[IPAddress, ...]:
        """Returns the addresses of the Pod."""
        ...

    async def detach(self, pod: LabPod, namespace: str) -> None: ...

    async def act(self, action: ActionSpec, configuration: Mapping[str, object]) -> None: ...

    async def power_off(self, node: str) -> None:
        """Kills all its processes; its files stay."""
        ...

    async def power_on(self, node: str) -> None:
        """Boots it in a new namespace of the same name, without the agent: a `startAgent` action starts that."""
        ...

    async def converge(self) -> None:
        """Waits until every Node forwards according to the published objects."""
        ...

    async def end(self) -> None:
        """Kills all processes."""
        ...
