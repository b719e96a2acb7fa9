"""How the agents learn of the cluster's objects: what a cluster needs for it, and the folder of manifests.

api_servers.py has the other way: a real API server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from windlass.cluster.manifests import revision_of
from windlass.lab.control import manifests
from windlass.lab.sandbox.labs import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.lab.sandbox.labs import Lab
    from windlass.lab.scenarios.desired_states import Addresses, DesiredState
    from windlass.lab.scenarios.objects import LabNode
    from windlass.lab.scenarios.segments import Machine


class Publisher(Protocol):
    @property
    def machines(self) -> tuple[Machine, ...]:
        """What it needs on the underlay, beside the Nodes."""
        ...

    async def start(self) -> None:
        """Its machines are plugged in."""
        ...

    def options(self, node: LabNode) -> Mapping[str, object]:
        """What the agent of this Node is configured with, to learn of it."""
        ...

    async def publish(self, desired: DesiredState, addresses: Addresses) -> None:
        """Makes these objects, and no others, those of the cluster; `addresses` are those that the Pods have."""
        ...

    async def revision(self, node: str) -> str | None:
        """What the agent of this Node calls the state that was published; None while nobody can learn of it."""
        ...

    async def act(self, verb: str) -> None: ...

    async def end(self) -> None: ...


class ManifestFolder:
    """The agents watch a folder; the lab plays the endpoint controller."""

    machines: tuple[Machine, ...] = ()

    def __init__(self, lab: Lab) -> None:
        self._folder = lab.manifests

    async def start(self) -> None:
        pass

    def options(self, node: LabNode) -> Mapping[str, object]:  # noqa: ARG002 - all read the same folder
        return {"manifests": str(self._folder)}

    async def publish(self, desired: DesiredState, addresses: Addresses) -> None:
        manifests.write(self._folder, manifests.render(desired, addresses))

    async def revision(self, node: str) -> str | None:  # noqa: ARG002 - the same for all
        return revision_of(self._folder)

    async def act(self, verb: str) -> None:
        raise LabError(
            f"{verb}: there is no API server in this lab, the agents read manifests from a folder; "
            "`windlass lab run --cluster apiserver` has one"
        )

    async def end(self) -> None:
        pass
