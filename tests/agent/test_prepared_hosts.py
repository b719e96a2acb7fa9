"""A host that is prepared for the switch, as on Windows: ovs-vswitchd must then try again to create its bridge."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fed_agents import FedAgent, fed_node, node

from switches import requires_ovs
from windlass.host.linux.hosts import LinuxHost, LinuxPods, LinuxUplink
from windlass.host.protocol import AttachedLink, HostError
from windlass.model.families import IPAddress, IPNetwork
from windlass.switch.ovsdb import open_database

pytestmark = requires_ovs


class PreparedUplink(LinuxUplink):
    """The first call says that ovs-vswitchd must try again, and no other call does."""

    calls = 0

    async def prepare(
        self,
        uplink: str,  # noqa: ARG002
        bridge: str,  # noqa: ARG002
        node_ips: Collection[IPAddress],  # noqa: ARG002
        pod_cidrs: Collection[IPNetwork],  # noqa: ARG002
    ) -> bool:
        self.calls += 1
        return self.calls == 1


class RefusedPods(LinuxPods):
    """The first call is refused."""

    appear_later = True
    calls = 0

    async def links(self) -> Sequence[AttachedLink]:
        self.calls += 1
        if self.calls == 1:
            raise HostError("refused by the test")
        return await super().links()


class PreparedHost(LinuxHost):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.uplink = self.prepared = PreparedUplink(self._threads, self._file, self._formers)
        self.pods = self.refused = RefusedPods(self._threads)


async def changes_of(fed: FedAgent) -> int:
    """How many changes of the database ovs-vswitchd was told to carry out."""
    async with open_database(str(fed.switch.folder / "db.sock")) as database:
        return database.view.root.next_cfg


async def test_ovs_vswitchd_tries_again_also_if_the_pass_that_prepared_the_host_fails() -> None:
    async with fed_node(PreparedHost) as fed:
        fed.host.prepared.calls = fed.host.refused.calls = 1
        async with fed.running():
            await fed.holds(node())
        changes = await changes_of(fed)
        async with fed.running():
            await fed.reaches("1")
        assert await changes_of(fed) == changes, "an agent that starts again has nothing to change"

        fed.host.prepared.calls = fed.host.refused.calls = 0
        async with fed.running():
            await fed.reaches("1")
        assert fed.host.prepared.calls > 1, "the first pass failed"
        assert await changes_of(fed) > changes
