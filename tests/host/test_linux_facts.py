"""The facts of a Linux host for the preflight checks, set up with the host's own tools and read back."""

from __future__ import annotations

import http.server
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_machines import LinuxMachine, ip, requires_namespaces

from windlass.host.linux import facts, settings
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.records import RecordFile
from windlass.host.preflight import ConntrackUse

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost
    from windlass.host.preflight import Facts

pytestmark = requires_namespaces


def gathered(machine: LinuxMachine, folder: Path = Path("/nonexistent")) -> Facts:
    with Netlink() as netlink:
        return facts.gather(netlink, RecordFile(machine.state_directory / "uplink.json"), "br-int", None, folder)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


async def test_the_uplink_is_found_by_the_default_route(host: LinuxHost, machine: LinuxMachine):
    found = await host.facts("br-int")
    assert (found.uplink, found.mtu, found.ethernet, found.carrier, found.master) == ("eth0", 1500, True, True, "")
    assert {str(address) for address in found.addresses} >= {"192.0.2.5/24", "2001:db8::5/64"}
    assert {"eth0", "lo"} <= found.interfaces
    ip("-n", machine.wire, "link", "set", "wire", "down")
    assert not (await host.facts("br-int")).carrier


async def test_the_uplink_is_found_after_it_was_taken(host: LinuxHost, machine: LinuxMachine):
    before = await host.facts("br-int")
    await host.uplink.adopt("eth0", "br-int", machine.node_ips)
    after = await host.facts("br-int")
    assert (after.uplink, set(after.addresses)) == ("eth0", set(before.addresses))


def test_a_nic_in_a_bridge(machine: LinuxMachine):
    ip("link", "add", "lan0", "type", "bridge")
    ip("link", "set", "eth0", "master", "lan0")
    found = gathered(machine)
    assert (found.master, found.master_kind) == ("lan0", "bridge")


def test_local_ports(machine: LinuxMachine):
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20000 30000")
    Path("/proc/sys/net/ipv4/ip_local_reserved_ports").write_text("20005,21000-21999")
    found = gathered(machine)
    assert found.local_ports == (20000, 30000)
    assert found.reserved_ports == ((20005, 20005), (21000, 21999))


@pytest.mark.parametrize(
    ("command", "chain"),
    [
        (("iptables-nft", "-P", "FORWARD", "DROP"), "chain FORWARD of nftables table ip filter"),
        (("ip6tables-nft", "-P", "FORWARD", "DROP"), "chain FORWARD of nftables table ip6 filter"),
        (("iptables-legacy", "-P", "FORWARD", "DROP"), "chain FORWARD of iptables-legacy"),
        (("ip6tables-legacy", "-P", "FORWARD", "DROP"), "chain FORWARD of ip6tables-legacy"),
        (
            (
                "nft",
                "add table inet fw; add chain inet fw onward { type filter hook forward priority 0; policy drop; }",
            ),
            "chain onward of nftables table inet fw",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_policy_that_drops_forwarded_packets(machine: LinuxMachine, command: tuple[str, ...], chain: str):
    assert gathered(machine).drop_chains == ()
    run(*command)
    assert gathered(machine).drop_chains == (chain,)


def test_chains_that_accept_or_have_another_hook_are_ignored(machine: LinuxMachine):
    run("iptables-nft", "-P", "INPUT", "DROP")
    run("iptables-legacy", "-P", "INPUT", "DROP")
    run("nft", "add table inet fw; add chain inet fw onward { type filter hook forward priority 0; policy accept; }")
    assert gathered(machine).drop_chains == ()


@pytest.mark.parametrize("command", ["iptables-nft", "iptables-legacy"])
def test_rules_of_kube_proxy(machine: LinuxMachine, command: str):
    run(command, "-t", "nat", "-N", "KUBE-KUBELET-CANARY")
    assert gathered(machine).kube_proxy == ()
    run(command, "-t", "nat", "-N", "KUBE-SERVICES")
    assert gathered(machine).kube_proxy == ("iptables chain KUBE-SERVICES",)


def test_the_nftables_table_of_kube_proxy(machine: LinuxMachine):
    run("nft", "add table ip kube-proxy; add chain ip kube-proxy services")
    assert gathered(machine).kube_proxy == ("nftables table ip kube-proxy",)


@pytest.mark.parametrize(("mode", "signs"), [("ipvs", ("a process at 127.0.0.1:10249, mode ipvs",)), ("windlass", ())])
def test_a_running_kube_proxy_is_not_mistaken_for_windlass(machine: LinuxMachine, mode: str, signs: tuple[str, ...]):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(mode.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 10249), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert gathered(machine).kube_proxy == signs
        finally:
            server.shutdown()
            thread.join()


def test_network_configurations_in_the_order_of_the_runtime(machine: LinuxMachine, tmp_path: Path):
    for name in ("10-windlass.conflist", "05-cilium.conf", "05-cilium.conf.disabled"):
        (tmp_path / name).touch()
    assert gathered(machine, tmp_path).network_configurations == ("05-cilium.conf", "10-windlass.conflist")


def test_the_kernel_counts_its_connections(machine: LinuxMachine):
    found = gathered(machine).connections
    assert found is not None
    assert found.limit == int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())


def test_a_limit_of_zero_is_no_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """nf_conntrack_max=0 means no limit, not a very small table."""
    (tmp_path / "netfilter").mkdir()
    (tmp_path / "netfilter" / "nf_conntrack_max").write_text("0\n")
    (tmp_path / "netfilter" / "nf_conntrack_count").write_text("7\n")
    monkeypatch.setattr(settings, "_NET", tmp_path)
    assert facts._connections() is None
    (tmp_path / "netfilter" / "nf_conntrack_max").write_text("65536\n")
    assert facts._connections() == ConntrackUse(65536, 7, can_be_raised=True)
