"""The preflight checks: which facts are findings, their severity, and that each says what to do."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import pytest

from windlass.host.preflight import ConntrackUse, Facts, Intent, Severity, findings
from windlass.model.nodes import TunnelType
from windlass.pipeline.snat_ports import UNRESERVED

SOUND = Facts(
    uplink="eth0",
    mtu=1500,
    addresses=(ip_interface("192.0.2.5/24"), ip_interface("2001:db8::5/64")),
    interfaces=frozenset({"lo", "eth0"}),
    connections=ConntrackUse(262_144, 10),
    network_configurations=("10-windlass.conflist", "87-podman-bridge.conflist"),
)
INTENT = Intent(bridge="br-int", gateway="windlass-gw0", tunnel=TunnelType.GENEVE, userspace=False)
NOT_RESERVING = replace(INTENT, reserves_ports=False)


def test_a_suitable_host_has_no_findings():
    assert findings(SOUND, INTENT) == ()


@pytest.mark.parametrize(
    ("facts", "severity", "check", "words"),
    [
        ({"ethernet": False}, "error", "uplink", "not an Ethernet interface"),
        ({"master": "bond0", "master_kind": "bond"}, "error", "uplink", "`uplink: bond0`"),
        ({"carrier": False}, "warning", "uplink", "no carrier"),
        ({"network_manager": True}, "warning", "uplink", "NetworkManager"),
        ({"mtu": 1310}, "warning", "MTU", "leaves 1260 bytes for a Pod's packet; IPv6 needs 1280"),
        (
            {"drop_chains": ("chain FORWARD of nftables table ip filter",)},
            "warning",
            "forwarding",
            "Pods cannot reach",
        ),
        ({"connections": ConntrackUse(65_536, 0)}, "warning", "conntrack", "nf_conntrack_max=131072"),
        ({"connections": ConntrackUse(262_144, 250_000)}, "warning", "conntrack", "nearly full"),
        ({"missing_modules": frozenset({"openvswitch"})}, "error", "kernel", "`datapathType: netdev`"),
        ({"missing_modules": frozenset({"geneve"})}, "warning", "kernel", "`tunnelType`"),
        ({"nftables": False}, "warning", "kernel", "modprobe nf_tables"),
        (
            {"interfaces": frozenset({"cilium_host", "cilium_net"})},
            "warning",
            "other network",
            "Cilium is on this Node",
        ),
        ({"interfaces": frozenset({"antrea-gw0"})}, "warning", "other network", "Antrea"),
        ({"interfaces": frozenset({"cali123", "vxlan.calico"})}, "warning", "other network", "Calico"),
        ({"interfaces": frozenset({"flannel.1"})}, "warning", "other network", "flannel"),
        ({"foreign_ports": ("antrea-gw0",)}, "error", "other network", "not created by Windlass (ports antrea-gw0)"),
        ({"network_configurations": ("05-cilium.conflist",)}, "warning", "CNI", "05-cilium.conflist"),
        ({"interfaces": frozenset({"kube-ipvs0"})}, "warning", "kube-proxy", "kube-ipvs0"),
        ({"kube_proxy": ("nftables table ip kube-proxy",)}, "warning", "kube-proxy", "kube-proxy --cleanup"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_each_problem_is_one_finding(facts: dict[str, Any], severity: str, check: str, words: str):
    (finding,) = findings(replace(SOUND, **facts), INTENT)
    assert (finding.severity.value, finding.check) == (severity, check)
    assert words in str(finding)
    assert finding.remedy.endswith(".")


def test_local_ports_that_can_be_reserved_are_no_finding():
    assert findings(replace(SOUND, local_ports=(1024, 65535)), INTENT) == ()


def test_too_few_local_ports_are_a_finding():
    few = replace(SOUND, local_ports=(32768, 50000))
    (finding,) = findings(few, INTENT)
    assert "of which only 849 would be left if 12288-28671,32768-49151 were reserved" in finding.what
    assert findings(few, NOT_RESERVING) == ()


def test_local_ports_that_overlap_snat_ports_are_a_finding():
    wide = replace(SOUND, local_ports=(1024, 65535))
    assert [finding.check for finding in findings(wide, NOT_RESERVING)] == ["local ports", "local ports"]
    reserved = replace(wide, reserved_ports=((UNRESERVED.pods[0], UNRESERVED.services[1]),))
    assert findings(reserved, NOT_RESERVING) == ()
    half = replace(wide, reserved_ports=(UNRESERVED.pods,))
    (finding,) = findings(half, NOT_RESERVING)
    assert f"{UNRESERVED.services[0]}-{UNRESERVED.services[1]}" in finding.what


def test_checks_for_unused_features_are_skipped():
    user_space = replace(INTENT, userspace=True)
    assert findings(replace(SOUND, missing_modules=frozenset({"openvswitch", "geneve"})), user_space) == ()
    assert findings(replace(SOUND, missing_modules=frozenset({"vxlan"})), INTENT) == ()
    assert findings(replace(SOUND, mtu=1300), replace(INTENT, tunnel=None)) == ()
    small = replace(SOUND, switch_connections=ConntrackUse(1000, 0))
    assert findings(small, INTENT) == ()
    assert [finding.check for finding in findings(small, user_space)] == ["conntrack"]


def test_a_limit_that_the_agent_raises_is_no_finding():
    small = replace(SOUND, connections=ConntrackUse(65_536, 65_000, can_be_raised=True))
    assert findings(small, replace(INTENT, connections=131_072)) == ()
    assert len(findings(small, INTENT)) == 1
    assert len(findings(replace(SOUND, connections=ConntrackUse(65_536)), replace(INTENT, connections=131_072))) == 1


def test_a_configured_mtu_must_fit_into_the_tunnel():
    (finding,) = findings(SOUND, replace(INTENT, mtu=1500))
    assert "Set `mtu` to 1450 or less" in finding.remedy
    assert findings(SOUND, replace(INTENT, mtu=1450)) == ()


def test_a_nic_that_was_taken_stays_accepted():
    taken = replace(SOUND, adopted=True, master="ovs-system", master_kind="openvswitch", carrier=False)
    assert findings(taken, INTENT) == ()


def test_errors_come_first():
    found = findings(replace(SOUND, master="bond0", master_kind="bond", mtu=1310, nftables=False), INTENT)
    assert [finding.severity for finding in found] == [Severity.ERROR, Severity.WARNING, Severity.WARNING]
