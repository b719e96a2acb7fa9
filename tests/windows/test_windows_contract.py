"""The Windows host keeps the contract, as far as it is built: everything but Pods."""

from __future__ import annotations

import pytest
from host_contract import PlanContract, UplinkContract, WatchContract
from windows_machines import requires_stand_ins

from windlass.host.protocol import HostError

ACCESS_DENIED = 5


@requires_stand_ins
class TestWindowsHost(PlanContract, UplinkContract, WatchContract):
    pass


@requires_stand_ins
class TestRefusedMoves:
    """After any refused step the Node has its address and its default route."""

    @pytest.mark.parametrize(
        "call", ["CreateUnicastIpAddressEntry", "DeleteUnicastIpAddressEntry", "CreateIpForwardEntry2"]
    )
    async def test_a_refused_step_is_undone(self, host, machine, call):
        before = await host.uplink.find("br-int", machine.node_ips)
        with machine.refusing(call, ACCESS_DENIED), pytest.raises(HostError, match=r"could not (add|remove) "):
            await host.uplink.adopt("eth0", "br-int", machine.node_ips)

        # While it lasts, an address that was taken away cannot come back: the next attempt brings it.
        await host.uplink.release("eth0", "br-int")

        assert machine.holders("192.0.2.5") == {"eth0"}
        assert set((await host.uplink.find("br-int", machine.node_ips)).routes) == set(before.routes)
        assert machine.has_route("default")
        adopted = await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        assert not adopted.problems
        assert machine.holders("192.0.2.5") == {"br-int"}
