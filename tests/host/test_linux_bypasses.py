"""The bypass of the switch: the Node answers after each step, whatever is refused, and the bypass is removed."""

from __future__ import annotations

import errno
import itertools
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
from host_machines import LinuxMachine, ip, reaches, requires_namespaces
from moved_items import EMPTY, CrashError, Faulty, seen

from windlass.host.linux import namespaces, settings, uplinks
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import Netlink, NetlinkError
from windlass.host.linux.records import RecordFile
from windlass.host.protocol import HostError
from windlass.model.families import Family

pytestmark = requires_namespaces

CHANGES = 15  # there are at least so many
STRICT, LOOSE = 1, 2
TRIES = 10  # of 0.3 s: a neighbour is asked for once a second
FAR = ("198.18.7.7", "2001:db8:7::7")  # of a client that the Node reaches by its router


class Taking:
    """The steps in which the agent takes a NIC, without adding it to the bridge."""

    def __init__(self, machine: LinuxMachine) -> None:
        self.file = RecordFile(machine.state_directory / "uplink.json")
        self.formers = FormerSettings(machine.state_directory / "former-settings.json")
        self.node_ips = machine.node_ips

    def bypass(self, netlink: Netlink) -> str:
        return uplinks.bypass(netlink, self.file, self.formers, "eth0", "br-int", self.node_ips)

    def complete(self, netlink: Netlink) -> None:
        uplinks.adopt(netlink, self.file, "eth0", "br-int", self.node_ips)
        uplinks.end_bypass(netlink, "eth0", "br-int")


@pytest.fixture
def taking(machine: LinuxMachine) -> Taking:
    return Taking(machine)


@pytest.mark.parametrize("rp_filter", [0, STRICT, LOOSE])
def test_the_node_answers_after_a_crash_at_any_step(machine: LinuxMachine, taking: Taking, rp_filter: int):
    before = seen("eth0")
    for at in itertools.count(1):
        settings.set_sysctl(Family.IPV4, "all", "rp_filter", rp_filter)
        crashed = True
        with Faulty(at, CrashError()) as netlink, suppress(CrashError):
            assert not taking.bypass(netlink)
            crashed = False
        assert answers(machine), f"change {at}"
        with Netlink() as netlink:
            assert not taking.bypass(netlink)
            assert answers(machine), f"change {at}, tried again"
            taking.complete(netlink)
            assert (seen("br-int"), seen("eth0")) == (before, EMPTY), f"change {at}"
            uplinks.release(netlink, taking.file, "eth0", "br-int")
            settings.restore(netlink, taking.formers)
        machine.remake_bridge()
        assert seen("eth0") == before, f"change {at}"
        if not crashed:
            break
    assert at > CHANGES


def test_the_uplink_is_restored_whichever_change_is_refused(machine: LinuxMachine, taking: Taking):
    before = seen("eth0")
    told = set[str]()
    for at in itertools.count(1):
        with Faulty(at, NetlinkError(errno.EIO, "refused by the test")) as netlink:
            try:
                reason = taking.bypass(netlink)
                if not reason:
                    break
            except HostError as error:
                reason = str(error)
                assert "the addresses are back on eth0" in reason
        told.add(reason)
        assert seen("eth0") == before, f"change {at}: {reason}"
        assert seen("br-int")["addresses"] == [], f"change {at}"
        assert not list(filters()), f"change {at}"
        machine.remake_bridge()
    assert at > CHANGES
    assert any("could not connect br-int with eth0 past the switch" in sentence for sentence in told)


def test_a_release_during_a_bypass_restores_everything(machine: LinuxMachine, taking: Taking):
    before = seen("eth0")
    with Netlink() as netlink:
        taking.bypass(netlink)
        assert list(filters())
        uplinks.release(netlink, taking.file, "eth0", "br-int")
    assert (seen("eth0"), seen("br-int")) == (before, EMPTY)
    assert not list(filters())
    assert answers(machine)


def test_a_recreated_bridge_interface_is_connected_again(machine: LinuxMachine, taking: Taking):
    with Netlink() as netlink:
        taking.bypass(netlink)
        machine.remake_bridge()
        assert not taking.bypass(netlink)
    assert answers(machine)


def test_a_strict_reverse_path_filter_is_restored_by_the_release(machine: LinuxMachine, taking: Taking):
    for where in ("all", "eth0"):
        settings.set_sysctl(Family.IPV4, where, "rp_filter", STRICT)
    with Netlink() as netlink:
        taking.bypass(netlink)
        assert settings.sysctl(Family.IPV4, "eth0", "rp_filter") == LOOSE
        assert settings.sysctl(Family.IPV4, "windlass-gw0", "rp_filter") == STRICT
        settings.restore(netlink, taking.formers)
    assert [settings.sysctl(Family.IPV4, where, "rp_filter") for where in ("all", "eth0")] == [STRICT, STRICT]


def answers(machine: LinuxMachine) -> bool:
    """Also later, when neighbours must be resolved again, and for clients behind a router."""
    ip("neigh", "flush", "all")
    with namespaces.entered(namespaces.path_of(machine.wire)):
        ip("address", "replace", FAR[0], "dev", "lo")
        ip("address", "replace", FAR[1], "dev", "lo", "nodad")
        return all(
            any(reaches(str(address), source) for _ in range(TRIES))
            for address, far in zip(machine.node_ips, FAR, strict=True)
            for source in ("", far)
        )


def filters() -> Iterator[str]:
    for interface, hook in itertools.product(("eth0", "br-int"), ("ingress", "egress")):
        command = ["tc", "filter", "show", "dev", interface, hook]
        yield from subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
