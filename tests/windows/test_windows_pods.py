"""Pods on a Windows host: the contract, and what only HNS does. HNS is stood in for; interfaces are real."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from host_contract import PodContract, attach, pod_link
from windows_machines import ip_json, requires_stand_ins

from windlass.host.protocol import HostError, PodDns

pytestmark = requires_stand_ins


@pytest.fixture
async def host(machine):
    """With the HNS network on the NIC."""
    machine.remove_bridge()
    opened = machine.open_host()
    await opened.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
    yield opened
    await opened.close()


class TestWindowsPods(PodContract):
    pass


class TestEndpoints:
    async def test_the_pod_has_the_address_the_gateway_and_the_mtu(self, host, machine):
        link = pod_link(machine, machine.new_sandbox())
        await attach(host, link)

        (address,) = ip_json("-n", link.namespace, "-4", "address", "show", "dev", "eth0")
        assert [(a["local"], a["prefixlen"]) for a in address["addr_info"]] == [("10.0.1.7", 24)]
        assert address["mtu"] == 1450
        (route,) = ip_json("-n", link.namespace, "route", "show", "default")
        assert route["gateway"] == "10.0.1.1"
        assert machine.first_frame(link.namespace, "10.0.1.1") == ["up", link.mac]

    async def test_an_interface_that_appears_later_is_awaited(self, host, machine):
        link = pod_link(machine, machine.new_sandbox())
        with machine.late_interfaces():
            await host.pods.attach(link)
        assert await host.pods.check(link) == ()  # its MTU is not known yet
        awaited = asyncio.create_task(host.pods.appeared(link.host_interface, link.mtu))
        await host.pods.links()
        assert not awaited.done()

        machine.start_container(link.host_interface)
        await awaited
        assert await host.pods.check(link) == ()
        assert ip_json("-n", link.namespace, "link", "show", "dev", "eth0")[0]["mtu"] == 1450

    async def test_a_deletion_that_hangs_is_given_up_and_found_again(self, host, machine, monkeypatch):
        monkeypatch.setattr("windlass.host.windows.pod_links._SECONDS_TO_DELETE", 1.0)
        link = pod_link(machine, machine.new_sandbox())
        await attach(host, link)
        with machine.refusing("HcnDeleteEndpoint", "hang"):
            for _ in range(2):
                with pytest.raises(HostError, match="deleting endpoint pod-1 did not finish within 1 s"):
                    await host.pods.detach("pod-1")
            assert await host.pods.links()  # others are served meanwhile
        monkeypatch.setattr("windlass.host.windows.pod_links._SECONDS_TO_DELETE", 60.0)
        await host.pods.detach("pod-1")
        assert await host.pods.links() == ()

    async def test_each_container_of_docker_is_attached_to_the_endpoint_of_its_sandbox(self, host, machine):
        sandbox = replace(pod_link(machine, "none"), container="sandbox")
        await host.pods.attach(sandbox)
        await host.pods.attach(replace(sandbox, container="workload"))

        (endpoint,) = machine.service_state()["endpoints"].values()
        assert endpoint["containers"] == ["sandbox", "workload"]
        await host.pods.detach("pod-1")
        assert machine.service_state()["endpoints"] == {}

    async def test_dns_is_in_the_endpoint(self, host, machine):
        dns = PodDns(("10.96.0.10",), "default.svc", ("svc.cluster.local",), ("ndots:5",))
        await host.pods.attach(replace(pod_link(machine, machine.new_sandbox()), dns=dns))

        (endpoint,) = machine.service_state()["endpoints"].values()
        assert endpoint["document"]["Dns"] == {
            "Domain": "default.svc",
            "Search": ["svc.cluster.local"],
            "ServerList": ["10.96.0.10"],
            "Options": ["ndots:5"],
        }

    @pytest.mark.parametrize("call", ["HcnCreateEndpoint", "HcnModifyNamespace", "HcnEnumerateEndpoints"])
    async def test_a_stopped_service_is_said_in_a_sentence(self, host, machine, call):
        with machine.refusing(call, 0x80070426), pytest.raises(HostError, match=r"start it: sc\.exe start hns"):
            await host.pods.attach(pod_link(machine, machine.new_sandbox()))
        assert await host.pods.links() == ()

    async def test_a_windows_without_the_call_or_the_library_is_said_in_a_sentence(self, machine):
        for library, reason in (
            ("iphlpapi.dll", "has no HcnEnumerateNetworks: Windows Server 2019 or later"),
            ("no-such.dll", "no-such.dll cannot be loaded: .*Install-WindowsFeature Containers"),
        ):
            host = machine.open_host(compute_network=library)
            with pytest.raises(HostError, match=reason):
                await host.pods.links()
            assert (await host.uplink.find("br-int", machine.node_ips)).name == "eth0"
            await host.close()


class TestNetwork:
    async def test_the_bridge_interface_has_what_the_nic_had(self, host, machine):
        assert machine.holders("192.0.2.5") == {"br-int"}
        assert machine.holders("192.0.2.77") == {"br-int"}
        assert machine.has_route("default")
        assert (await host.uplink.find("br-int", machine.node_ips)).name == "eth0"
        (network,) = machine.service_state()["networks"].values()
        assert network["extension"]
        subnets = network["document"]["Ipams"][0]["Subnets"]
        assert subnets[0]["IpAddressPrefix"] == "10.0.1.0/24"

    async def test_prepared_again_nothing_changes(self, host, machine):
        before = machine.service_state()
        cidrs = machine.state.node.pod_cidrs.values()
        assert not await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)
        assert machine.service_state() == before

    async def test_after_a_failed_call_the_switch_tries_again(self, host, machine):
        """HNS may have enabled the extension all the same."""
        cidrs = machine.state.node.pod_cidrs.values()
        with machine.refusing("HNSCall", 0x80070005), pytest.raises(HostError):
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)
        assert await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)
        assert not await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)

    async def test_released_the_network_is_gone_and_the_nic_has_everything(self, host, machine):
        await host.pods.attach(pod_link(machine, machine.new_sandbox()))
        before = (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).uplink
        for _ in range(2):
            await host.uplink.release("eth0", "br-int")
            assert machine.holders("192.0.2.5") == {"eth0"}
            assert set((await host.uplink.find("br-int", machine.node_ips)).routes) == set(before.routes)
            assert machine.service_state()["networks"] == {}

    async def test_addresses_that_the_service_forgets_come_back_by_the_record(self, host, machine, monkeypatch):
        monkeypatch.setattr("windlass.host.windows.uplink_hosts._SECONDS_FOR_ADDRESSES", 0.5)
        with machine.forgetful_service():
            await host.uplink.release("eth0", "br-int")
            assert machine.holders("192.0.2.5") == {"eth0"}
            assert machine.has_route("default")
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
            assert machine.holders("192.0.2.5") == {"br-int"}
            assert machine.has_route("default")

    async def test_after_a_reboot_without_the_network_it_is_made_again(self, host, machine):
        await host.uplink.adopt("eth0", "br-int", machine.node_ips)
        await host.uplink.release("eth0", "br-int", keep_record=True)  # HNS forgot it: the NIC has its addresses
        await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
        assert machine.holders("192.0.2.5") == {"br-int"}

    async def test_other_pod_cidrs_are_said_in_a_sentence(self, host, machine):
        cidrs = [replace_cidr(cidr) for cidr in machine.state.node.pod_cidrs.values()]
        with pytest.raises(
            HostError, match=r"has the subnets 10\.0\.1\.0/24, and the Node's PodCIDR is 10\.9\.9\.0/24"
        ):
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)


def replace_cidr(cidr):
    return type(cidr)("10.9.9.0/24")


class TestRefusedNetwork:
    """Whatever is refused, the Node has its address and its default route, and the next attempt succeeds."""

    @pytest.fixture
    async def host(self, machine):
        machine.remove_bridge()
        opened = machine.open_host()
        yield opened
        await opened.close()

    @pytest.mark.parametrize(
        ("call", "code", "reason"),
        [
            ("HcnCreateNetwork", 0x803B0006, "HNS cannot use eth0: .*must be a physical NIC"),
            ("HcnCreateNetwork", 0x80070426, r"start it: sc\.exe start hns"),
            ("HcnEnumerateNetworks", 0x800706BA, r"start it: sc\.exe start hns"),
            ("HNSCall", 0x80070005, "GET /networks/.*: HCN refused it .0x80070005"),
        ],
    )
    async def test_a_refused_call_is_said_in_a_sentence(self, host, machine, call, code, reason):
        cidrs = machine.state.node.pod_cidrs.values()
        with machine.refusing(call, code), pytest.raises(HostError, match=reason):
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)
        assert len(machine.holders("192.0.2.5")) == 1
        assert machine.has_route("default")

        await host.uplink.prepare("eth0", "br-int", machine.node_ips, cidrs)
        assert machine.holders("192.0.2.5") == {"br-int"}
        assert machine.has_route("default")

    async def test_a_missing_extension_is_said_in_a_sentence(self, host, machine):
        with machine.without_extension(), pytest.raises(HostError, match="install its signed driver"):
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
        assert machine.holders("192.0.2.5") == {"br-int"}
        assert machine.has_route("default")

    async def test_the_switch_merges_segments_once_its_extension_is_enabled(self, machine, tmp_path):
        machine.remove_bridge()
        calls, program = tmp_path / "calls.txt", tmp_path / "powershell.bat"
        program.write_text(f"@echo %* >>{calls}\r\n")
        host = machine.open_host(powershell=str(program))
        for _ in range(2):  # the second time, nothing is left to do
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
        (call,) = calls.read_text().splitlines()
        assert "Set-VMSwitch -Name windlass -EnableSoftwareRsc $true" in call
        await host.uplink.release("eth0", "br-int")
        await host.close()

    async def test_the_node_works_without_powershell(self, machine):
        machine.remove_bridge()
        host = machine.open_host(powershell="no-such-powershell.exe")
        await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
        assert machine.holders("192.0.2.5") == {"br-int"}
        await host.uplink.release("eth0", "br-int")
        await host.close()

    async def test_a_refused_rename_is_said_in_a_sentence(self, machine):
        machine.remove_bridge()
        host = machine.open_host(netsh="no-such-netsh.exe")
        with pytest.raises(HostError, match=r"could not rename vEthernet \(eth0\) to br-int"):
            await host.uplink.prepare("eth0", "br-int", machine.node_ips, machine.state.node.pod_cidrs.values())
        assert len(machine.holders("192.0.2.5")) == 1
        assert machine.has_route("default")
        assert (await host.uplink.find("br-int", machine.node_ips)).name == "eth0"
        with machine.refusing("HcnEnumerateNetworks", 0x80070426), pytest.raises(HostError, match="start it"):
            await host.uplink.find("br-int", machine.node_ips)  # not the interface of HNS that has the Node IP
        await host.uplink.release("eth0", "br-int")
        assert machine.holders("192.0.2.5") == {"eth0"}
        await host.close()
