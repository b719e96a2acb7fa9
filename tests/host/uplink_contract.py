"""What every host must do with its uplink, whatever its operating system: a part of the contract of hosts."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from typing import TYPE_CHECKING

import pytest

from windlass.host.protocol import Host, HostError
from windlass.model.families import Family

if TYPE_CHECKING:
    from host_contract import Machine


class UplinkContract:
    """The uplink's addresses and routes move to the bridge interface, and the Node never loses them."""

    async def test_the_uplink_is_the_nic_with_the_node_ip(self, host: Host, machine: Machine):
        found = await host.uplink.find("br-int", machine.node_ips)

        assert (found.name, found.mac, found.mtu) == ("eth0", "02:00:00:00:00:05", 1500)
        assert ip_interface("192.0.2.5/24") in found.addresses
        assert {str(r.destination) for r in found.routes} >= {"0.0.0.0/0", "203.0.113.0/24"}
        assert ("::/0" in {str(r.destination) for r in found.routes}) == (Family.IPV6 in machine.state.node.families)

    async def test_a_node_ip_on_no_nic_is_reported(self, host: Host, machine: Machine):
        with pytest.raises(HostError, match=r"Node IP 192\.0\.2\.99.*set `uplink` in the configuration"):
            await host.uplink.find("br-int", [ip_address("192.0.2.99")])
        with pytest.raises(HostError, match="there is no interface eth9"):
            await host.uplink.find("br-int", machine.node_ips, "eth9")

    async def test_adopted_the_bridge_interface_has_all_that_the_uplink_had(self, host: Host, machine: Machine):
        before = await host.uplink.find("br-int", machine.node_ips)

        adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink

        assert adopted == before
        for address in before.addresses:
            assert machine.holders(str(address.ip)) == {"br-int"}

    async def test_adopting_again_is_the_same(self, host: Host, machine: Machine):
        adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink

        assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink == adopted
        for address in adopted.addresses:
            assert machine.holders(str(address.ip)) == {"br-int"}

    async def test_after_a_restart_the_uplink_is_found_by_the_record(self, host: Host, machine: Machine):
        adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink

        again = machine.open_host()
        try:
            assert await again.uplink.find("br-int", machine.node_ips) == adopted
            assert (await again.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink == adopted
        finally:
            await again.close()

    async def test_a_bridge_interface_that_is_made_again_gets_everything_back(self, host: Host, machine: Machine):
        adopted = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink
        machine.remove_bridge()
        assert machine.holders("192.0.2.5") == set()
        machine.make_bridge()

        assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink == adopted

        for address in adopted.addresses:
            assert machine.holders(str(address.ip)) == {"br-int"}
        assert await host.uplink.find("br-int", machine.node_ips) == adopted

    async def test_without_a_bridge_interface_the_uplink_is_left_as_it_is(self, host: Host, machine: Machine):
        before = await host.uplink.find("br-int", machine.node_ips)
        machine.remove_bridge()

        with pytest.raises(HostError, match="there is no interface br-int: eth0 was not changed"):
            await host.uplink.adopt("eth0", "br-int", machine.node_ips)

        assert await host.uplink.find("br-int", machine.node_ips) == before
        assert machine.holders("192.0.2.5") == {"eth0"}

    async def test_a_missing_node_ip_is_reported_and_nothing_moves(self, host: Host, machine: Machine):
        with pytest.raises(HostError, match=r"has the Node IP 192\.0\.2\.99: eth0 was not changed"):
            await host.uplink.adopt("eth0", "br-int", [ip_address("192.0.2.99")])
        assert machine.holders("192.0.2.5") == {"eth0"}

    async def test_released_the_uplink_has_everything_back(self, host: Host, machine: Machine):
        before = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink

        for _ in range(2):
            await host.uplink.release("eth0", "br-int")
            for address in before.addresses:
                assert machine.holders(str(address.ip)) == {"eth0"}
            assert set((await host.uplink.find("br-int", machine.node_ips)).routes) == set(before.routes)

    async def test_released_after_the_bridge_interface_went_the_uplink_has_everything(
        self, host: Host, machine: Machine
    ):
        before = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink
        machine.remove_bridge()

        await host.uplink.release("eth0", "br-int")

        assert [machine.holders(str(ip)) for ip in machine.node_ips] == [{"eth0"}] * len(machine.node_ips)
        assert set((await host.uplink.find("br-int", machine.node_ips)).routes) == set(before.routes)
