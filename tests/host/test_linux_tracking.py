"""Connection tracking of the kernel, checked with its files and its list of connections."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_machines import LinuxMachine, requires_namespaces
from service_machines import requires_nftables

from windlass.host.linux import settings, tracking
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.plans import ConntrackParameter, ConntrackSetting, HostPlan, diff

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

NETFILTER = Path("/proc/sys/net/netfilter")
CONNECTIONS = Path("/proc/net/nf_conntrack")
TIMEOUTS = {
    "nf_conntrack_tcp_timeout_established": ConntrackSetting(ConntrackParameter.TCP_ESTABLISHED, 86400),
    "nf_conntrack_tcp_timeout_close_wait": ConntrackSetting(ConntrackParameter.TCP_CLOSE_WAIT, 3600),
    "nf_conntrack_udp_timeout": ConntrackSetting(ConntrackParameter.UDP, 17),
    "nf_conntrack_udp_timeout_stream": ConntrackSetting(ConntrackParameter.UDP_STREAM, 170),
}
DESIRED = HostPlan(tracking=frozenset(TIMEOUTS.values()))
TRACK = "table inet test { chain c { type filter hook input priority 0; ct state new accept; }; }"

needs_tracking = pytest.mark.skipif(not NETFILTER.exists(), reason="the kernel does not track connections")


def shown() -> dict[str, int]:
    return {name: int((NETFILTER / name).read_text()) for name in TIMEOUTS}


async def hold(host: LinuxHost, machine: LinuxMachine, desired: HostPlan) -> None:
    found = HostPlan(tracking=(await host.installed(machine.names)).tracking)
    assert await host.apply(diff(found, desired)) == ()


def half_closed(address: str) -> list[list[str]]:
    """The line of a half-closed connection in the kernel's list, split into words."""
    subprocess.run(["nft", "-f", "-"], input=TRACK, text=True, check=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
        server.accept()[0] as served,
    ):
        client.shutdown(socket.SHUT_WR)
        assert served.recv(1) == b""
        served.send(b"x")  # with this the end of the other side is acknowledged
        assert client.recv(1) == b"x"
        return [line.split() for line in CONNECTIONS.read_text().splitlines() if "CLOSE_WAIT" in line]


@needs_tracking
@requires_namespaces
async def test_timeouts_are_set_and_on_release_restored(host: LinuxHost, machine: LinuxMachine):
    before = shown()
    await hold(host, machine, DESIRED)
    assert shown() == {name: setting.value for name, setting in TIMEOUTS.items()}
    assert not diff(HostPlan(tracking=(await host.installed(machine.names)).tracking), DESIRED)

    (NETFILTER / "nf_conntrack_udp_timeout").write_text("55")  # a value of another program is kept
    assert await host.clean(machine.names) == ()
    assert shown() == {**before, "nf_conntrack_udp_timeout": 55}


@needs_tracking
@requires_namespaces
async def test_a_namespace_that_cannot_set_the_limit_leaves_it_unchanged(host: LinuxHost, machine: LinuxMachine):
    before = (NETFILTER / "nf_conntrack_max").read_text()
    with pytest.raises(PermissionError):
        (NETFILTER / "nf_conntrack_max").write_text(before)
    await hold(host, machine, HostPlan(tracking=frozenset((ConntrackSetting(ConntrackParameter.LIMIT, 2**30),))))
    assert (NETFILTER / "nf_conntrack_max").read_text() == before


@pytest.mark.skipif(not CONNECTIONS.exists(), reason="the kernel does not list its connections as a file")
@needs_tracking
@requires_namespaces
@requires_nftables
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_half_closed_connection_is_tracked_for_an_hour(host: LinuxHost, machine: LinuxMachine, address: str):
    """Required by Kubernetes' test of the CLOSE_WAIT timeout."""
    await hold(host, machine, DESIRED)
    (entry,) = half_closed(address)
    assert 3600 - 60 <= int(entry[4]) <= 3600


class Files:
    """A copy of the sysctl files of the initial namespace, so that no test changes the real ones."""

    def __init__(self, folder: Path, limit: int, buckets: int) -> None:
        self.folder = folder / "netfilter"
        self.folder.mkdir()
        self.formers = FormerSettings(folder / "former-settings.json")
        (self.folder / "nf_conntrack_max").write_text(f"{limit}\n")
        (self.folder / "nf_conntrack_buckets").write_text(f"{buckets}\n")

    @property
    def values(self) -> tuple[int, int]:
        """The limit and the buckets."""
        limit, buckets = (int((self.folder / f"nf_conntrack_{name}").read_text()) for name in ("max", "buckets"))
        return limit, buckets

    def hold(self, limit: int) -> None:
        desired = HostPlan(tracking=frozenset((ConntrackSetting(ConntrackParameter.LIMIT, limit),)))
        change = diff(HostPlan(tracking=frozenset(tracking.installed())), desired)
        assert tracking.write(self.formers, change.tracking) == []


@pytest.mark.parametrize(
    ("limit", "buckets", "becomes"),
    [
        (65536, 16384, (131072, 32768)),
        (65536, 65536, (131072, 65536)),  # there are enough buckets already
        (131072, 16384, (131072, 16384)),
        (262144, 65536, (262144, 65536)),  # a higher limit is not lowered
        (0, 16384, (0, 16384)),  # 0: no limit
    ],
)
def test_the_limit_is_only_raised_and_on_release_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, buckets: int, becomes: tuple[int, int]
):
    files = Files(tmp_path, limit, buckets)
    monkeypatch.setattr(settings, "_NET", tmp_path)
    files.hold(131072)
    assert files.values == becomes
    assert settings.restore(None, files.formers) == []
    assert files.values == (limit, buckets)


def test_a_kernel_that_tracks_no_connections_has_nothing_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "_NET", tmp_path)
    assert list(tracking.installed()) == []


def test_a_setting_that_fails_is_reported_and_the_rest_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "_NET", tmp_path)
    files = Files(tmp_path, 65536, 16384)
    wanted = {
        ConntrackSetting(ConntrackParameter.LIMIT, 131072),
        ConntrackSetting(ConntrackParameter.TCP_CLOSE_WAIT, 3600),
    }
    (problem,) = tracking.write(files.formers, wanted)
    assert problem == (
        "could not set the timeout of TCP connections in CLOSE_WAIT to 3600 "
        "(net/netfilter/nf_conntrack_tcp_timeout_close_wait): No such file or directory"
    )
    assert files.values == (131072, 32768)
