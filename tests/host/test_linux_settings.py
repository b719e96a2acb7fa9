"""Interface settings on Linux, as the sysctl files and ethtool show them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_machines import LinuxMachine, ip, requires_namespaces

from windlass.host.plans import HostChange, InterfaceSettings
from windlass.model.families import Family

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

pytestmark = requires_namespaces


def sysctl(name: str, value: int | None = None) -> int:
    file = Path("/proc/sys/net", name)
    if value is not None:
        file.write_text(str(value))
    return int(file.read_text())


def ethtool(interface: str) -> dict[str, str]:
    """The features according to `ethtool -k`, and whether each is on."""
    shown = subprocess.run(["ethtool", "-k", interface], capture_output=True, text=True, check=True).stdout
    lines = (line.strip().partition(": ") for line in shown.splitlines()[1:])
    return {feature: state.split()[0] for feature, _, state in lines}


async def set_(host: LinuxHost, settings: InterfaceSettings) -> None:
    assert await host.apply(HostChange(settings=(settings,))) == ()


async def test_forwarding_is_on_for_the_requested_families(host: LinuxHost, machine: LinuxMachine):
    for family in Family:
        sysctl(f"ipv{family.value}/conf/all/forwarding", 0)
    await set_(host, InterfaceSettings("br-int", forwards=frozenset((Family.IPV4,))))
    assert sysctl("ipv4/conf/br-int/forwarding") == 1
    assert sysctl("ipv4/conf/eth0/forwarding") == 0  # of the interfaces that are asked for alone
    assert sysctl("ipv6/conf/all/forwarding") == 0

    await set_(host, InterfaceSettings("br-int", forwards=frozenset(Family)))
    assert sysctl("ipv6/conf/all/forwarding") == sysctl("ipv6/conf/br-int/forwarding") == 1


async def test_interfaces_still_accept_router_advertisements_when_the_host_forwards(
    host: LinuxHost, machine: LinuxMachine
):
    sysctl("ipv6/conf/all/forwarding", 0)
    sysctl("ipv6/conf/eth0/accept_ra", 1)
    sysctl("ipv6/conf/gw-far/accept_ra", 0)
    await set_(host, InterfaceSettings("br-int", forwards=frozenset((Family.IPV6,))))
    assert sysctl("ipv6/conf/eth0/accept_ra") == 2
    assert sysctl("ipv6/conf/gw-far/accept_ra") == 0


async def test_its_own_source_is_accepted_and_other_interfaces_do_not_change(host: LinuxHost, machine: LinuxMachine):
    sysctl("ipv4/conf/all/rp_filter", 1)
    sysctl("ipv4/conf/eth0/rp_filter", 0)
    await set_(host, InterfaceSettings("br-int", accepts_own_source=True))
    assert sysctl("ipv4/conf/br-int/accept_local") == 1
    assert max(sysctl("ipv4/conf/br-int/rp_filter"), sysctl("ipv4/conf/all/rp_filter")) == 0
    assert max(sysctl("ipv4/conf/eth0/rp_filter"), sysctl("ipv4/conf/all/rp_filter")) == 1


@pytest.mark.skipif(shutil.which("ethtool") is None, reason="needs ethtool, as an independent judge")
async def test_offloads_are_disabled_and_restored(host: LinuxHost, machine: LinuxMachine):
    work = ("tx-checksumming", "tx-tcp-segmentation", "tx-tcp6-segmentation", "generic-receive-offload")
    for on in (False, True):
        await set_(host, InterfaceSettings("windlass-gw0", offloads=on))
        shown = ethtool("windlass-gw0")
        assert {feature: shown[feature] for feature in work} == dict.fromkeys(work, "on" if on else "off")


async def test_a_setting_that_fails_is_reported_and_the_rest_is_set(host: LinuxHost, machine: LinuxMachine):
    impossible = InterfaceSettings("br-int", up=True, mac="01:00:00:00:00:01", mtu=1400)
    (problem,) = await host.apply(HostChange(settings=(impossible,)))
    assert problem.startswith("br-int: could not set its MAC to 01:00:00:00:00:01: ")
    assert "mtu 1400" in ip("link", "show", "br-int", "up")

    (problem,) = await host.apply(HostChange(settings=(InterfaceSettings("no-such", up=True),)))
    assert problem == "there is no interface no-such; its settings are applied when it exists"
