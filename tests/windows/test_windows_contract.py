"""The Windows host keeps the contract; test_windows_pods.py has that of Pods."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import ip_network

import pytest
from host_contract import PlanContract, WatchContract
from uplink_contract import UplinkContract
from windows_machines import requires_stand_ins

from windlass.host.forwarded_clients import ForwardedClients
from windlass.host.plans import HostChange, NodePort, ServiceAccess
from windlass.host.protocol import HostError
from windlass.host.services import plan_services
from windlass.model.families import Family
from windlass.model.services import Frontend, Protocol, Reach, ServedPort, ServedService
from windlass.pipeline.reserved import NODE_PORT_ADDRESS

ACCESS_DENIED = 5


@requires_stand_ins
class TestWindowsHost(PlanContract, UplinkContract, WatchContract):
    pass


@requires_stand_ins
async def test_node_ports_answer_at_the_addresses_of_the_host(host, machine):
    """The switch is played by a server at the address to which its NodePorts are sent."""
    switch = str(NODE_PORT_ADDRESS[Family.IPV4])
    machine.give_address("lo", f"{switch}/32")
    networks = [ip_network("127.0.0.0/8"), ip_network("192.0.2.5/32")]
    items = plan_services(machine.state.node, machine.names, (), networks, mtu=1450).items
    port = NodePort(Family.IPV4, Protocol.TCP, 30080)
    frontend = Frontend(Reach.NODE_PORT, None, 30080)
    served = ServedPort("http", Protocol.TCP, Family.IPV4, (frontend,), endpoints=(), local_endpoints=())
    state = replace(machine.state, services={"default/web": ServedService("default", "web", (served,), ())})
    host.forward_clients(ForwardedClients(lambda: state))
    shared = frozenset(item for item in items if isinstance(item, ServiceAccess))

    async def answer(_reader, writer):
        writer.write(b"from the switch")
        writer.close()

    async def asked(address: str) -> bytes:
        reader, writer = await asyncio.open_connection(address, 30080)
        try:
            return await reader.read()
        finally:
            writer.close()

    async with await asyncio.start_server(answer, switch, 30080):
        assert await host.apply(HostChange(added=shared | {port})) == ()
        for address in ("127.0.0.1", "192.0.2.5"):
            assert await asked(address) == b"from the switch"
        with pytest.raises(OSError):  # an address of the host that is not among the networks
            await asked("192.0.2.77")
        assert await host.apply(HostChange(removed=frozenset({port}))) == ()
        with pytest.raises(OSError):
            await asked("127.0.0.1")


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
