"""How the agents get the cluster's objects: the interface, and its implementation by a folder of manifests.

api_servers.py implements it by a real API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from windlass.cluster.manifests import revision_of
from windlass.lab.control import manifests
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import LabNode
from windlass.lab.scenarios.segments import Machine


class Publisher(Protocol):
    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines that it needs on the underlay."""
        ...

    async def start(self) -> None:
        """Called when its machines are connected to the underlay."""
        ...

    def options(self, node: LabNode) -> Mapping[str, object]:
        """The settings with which the agent of this Node reads the objects."""
        ...

    async def publish(self, desired: DesiredState, addresses: PodAddresses) -> None:
        """Makes these the only objects of the cluster; `addresses` are those of the Pods."""
        ...

    async def revision(self, node: str) -> str | None:
        """The revision that the agent of this Node reports for the published state; None while it cannot read it."""
        ...

    async def act(self, verb: str) -> None: ...

    async def end(self) -> None: ...


class ManifestFolder:
    """The agents watch a folder, and the lab makes the EndpointSlices."""

    machines: tuple[Machine, ...] = ()

    def __init__(self, lab: Lab) -> None:
        self._folder = lab.manifests

    async def start(self) -> None:
        pass

    def options(self, node: LabNode) -> Mapping[str, object]:  # noqa: ARG002 - all read the same folder
        return {"manifests": str(self._folder)}

    async def publish(self, desired: DesiredState, addresses: PodAddresses) -> None:
        manifests.write(self._folder, manifests.render(desired, addresses))

    async def revision(self, node: str) -> str | None:  # noqa: ARG002 - the same for all
        return revision_of(self._folder)

    async def act(self, verb: str) -> None:
        raise LabError(
            f"{verb}: there is no API server in this lab, because its agents read manifests from a folder; "
            "run it with `windlass lab run --cluster apiserver`"
        )

    async def end(self) -> None:
        pass
