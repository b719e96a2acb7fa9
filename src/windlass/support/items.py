"""The items of a support bundle: what each contains, and how it is collected. Files with secrets are never read.

The items are independent: most work without an agent, many without Open vSwitch.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import windlass
from windlass.cluster import lastgood
from windlass.host.linux.nftables import Nftables, NftablesError
from windlass.nodes.config import Config
from windlass.support.sources import Unavailable, command, commands, control, file, files

# Ask the agent: a path of its local API, and the query.
AskAgent = Callable[[str, Mapping[str, str]], bytes]

# The main thread of ovs-vswitchd answers these: none may list all connections or all datapath flows.
_CONTROL = (
    ("version",),
    ("dpif/show",),
    ("dpctl/show",),
    ("upcall/show",),
    ("coverage/show",),
    ("memory/show",),
    ("ovs/route/show",),
    ("tnl/neigh/show",),
    ("tnl/ports/show",),
    ("bond/list",),
)
_CONNECTIONS = (("dpctl/ct-get-nconns",), ("dpctl/ct-get-maxconns",), ("dpctl/ct-get-tcp-seq-chk",))
_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
)
_PROC = ("dev", "route", "ipv6_route", "if_inet6", "fib_trie", "arp", "snmp", "softnet_stat")
_CNI_FOLDER = "/etc/cni/net.d"
_LOG = 1 << 20  # bytes of one log


@dataclass(frozen=True, slots=True)
class BundleItem:
    name: str  # the file in the bundle
    what: str
    collect: Callable[[], Awaitable[bytes]]


def items(config: Config, config_file: Path, ask: AskAgent) -> tuple[BundleItem, ...]:
    return (*_of_agent(config, config_file, ask), *_of_switch(config), *_of_host(config), *_logs(ask))


def _of_agent(config: Config, config_file: Path, ask: AskAgent) -> tuple[BundleItem, ...]:
    def asked(path: str, **query: str) -> Callable[[], Awaitable[bytes]]:
        return lambda: asyncio.to_thread(ask, path, query)

    named = ("--config", str(config_file)) if config_file.exists() else ()

    async def preflight() -> bytes:
        """In a separate process with the module path of this one, which is not the default in the image."""
        program = f"import sys; sys.path[:] = {sys.path!r}; from windlass.cli import main; main()"
        return await command(sys.executable, "-c", program, "preflight", *named, called="windlass preflight")

    return (
        BundleItem("versions.txt", "versions of Windlass, Python, the kernel and Open vSwitch", _versions),
        BundleItem("status.json", "`windlass status --json`", asked("/v1/state")),
        BundleItem("metrics.txt", "the metrics", asked("/metrics")),
        BundleItem("flows.json", "the desired flows, with names, owners and reasons", asked("/v1/flows")),
        BundleItem("groups.json", "the desired groups", asked("/v1/groups")),
        BundleItem("preflight.txt", "`windlass preflight`", preflight),
        BundleItem("configuration/windlass.yaml", "the configuration of the agent", lambda: file(config_file)),
        BundleItem("configuration/cni.txt", "names of the CNI configurations, without their content", _cni),
        BundleItem(
            "cluster.json", "Nodes, Services, endpoints and Pods' addresses, as last applied", lambda: _cluster(config)
        ),
    )


def _of_switch(config: Config) -> tuple[BundleItem, ...]:
    bridge = f"unix:{config.openflow_socket}"
    database = f"unix:{config.ovsdb_socket}"

    def ofctl(*arguments: str) -> Callable[[], Awaitable[bytes]]:
        return lambda: command("ovs-ofctl", "-O", "OpenFlow15", "--names", "--timeout=9", arguments[0], bridge)

    return (
        BundleItem("switch/flows.txt", "the installed flows, with counters", ofctl("dump-flows")),
        BundleItem("switch/groups.txt", "the installed groups", ofctl("dump-groups")),
        BundleItem("switch/group-counters.txt", "counters of the groups", ofctl("dump-group-stats")),
        BundleItem("switch/meters.txt", "the meters and their counters", ofctl("meter-stats")),
        BundleItem("switch/ports.txt", "the ports of the bridge", ofctl("dump-ports-desc")),
        BundleItem("switch/port-counters.txt", "counters of the ports", ofctl("dump-ports")),
        BundleItem("switch/database.txt", "the OVS database", lambda: command("ovsdb-client", "dump", database)),
        BundleItem(
            "switch/vswitchd.txt",
            "state of ovs-vswitchd: datapath, upcalls, memory, tunnels",
            lambda: control(config.ovs_run_directory, *_CONTROL),
        ),
        BundleItem(
            "switch/connections.txt",
            "how many connections the userspace datapath tracks, without the connections",
            lambda: control(config.ovs_run_directory, *_CONNECTIONS),
        ),
    )


def _of_host(config: Config) -> tuple[BundleItem, ...]:
    record = Path(config.state_directory) / "uplink.json"
    return (
        BundleItem("host/interfaces.txt", "interfaces", lambda: _ip("address", "-details", "-statistics")),
        BundleItem("host/routes.txt", "routes of all tables", lambda: _ip("route", "show", "table", "all")),
        BundleItem("host/rules.txt", "routing rules", lambda: _ip("rule")),
        BundleItem("host/neighbours.txt", "neighbours", lambda: _ip("neighbour")),
        BundleItem(
            "host/proc-net.txt",
            "network tables of the kernel",
            lambda: files(*(Path("/proc/net") / name for name in _PROC)),
        ),
        BundleItem("host/nftables.txt", "nftables rules, those of iptables-nft included", _nftables),
        BundleItem(
            "host/sysctls.txt", "network settings", lambda: files(*(Path("/proc/sys") / name for name in _SYSCTLS))
        ),
        BundleItem("host/modules.txt", "kernel modules", lambda: file(Path("/proc/modules"))),
        BundleItem("host/uplink.json", "what was moved from the NIC to the bridge", lambda: file(record)),
    )


def _logs(ask: AskAgent) -> tuple[BundleItem, ...]:
    places = (Path("/var/log/openvswitch").glob("*.log"), Path("/var/log/pods").glob("*_windlass-*/*/*.log"))
    found = sorted(path for place in places for path in place)
    return (
        BundleItem("logs/agent.log", "the end of the agent's log", lambda: asyncio.to_thread(ask, "/v1/logs", {})),
        BundleItem("logs/files.txt", "the ends of log files", lambda: files(*found, last=_LOG)),
        BundleItem(
            "logs/journal.txt",
            "the journal of Windlass and Open vSwitch",
            lambda: command(
                "journalctl", "--no-pager", "--lines=2000", "--unit=windlass*", "--unit=openvswitch*", "--unit=ovs*"
            ),
        ),
    )


async def _versions() -> bytes:
    facts = {
        "windlass": windlass.__version__,
        "python": sys.version.replace("\n", " "),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    with suppress(OSError):
        facts["system"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    lines = "".join(f"{name}: {value}\n" for name, value in facts.items()).encode()
    try:
        return lines + await command("ovs-vswitchd", "--version")
    except Unavailable as error:
        return lines + f"openvswitch: {error}\n".encode()


async def _cluster(config: Config) -> bytes:
    """In its typed form, which has no annotations, no environment and nothing else that Windlass does not use."""
    saved = await asyncio.to_thread(lastgood.load, Path(config.state_directory))
    if saved is None:
        raise Unavailable(f"{config.state_directory} holds no state of the cluster")
    return await asyncio.to_thread(msgspec.json.encode, saved)


async def _cni() -> bytes:
    try:
        names = await asyncio.to_thread(os.listdir, _CNI_FOLDER)
    except OSError as error:
        raise Unavailable(f"{_CNI_FOLDER}: {error.strerror}") from None
    return "".join(f"{name}\n" for name in sorted(names)).encode()


async def _ip(*arguments: str) -> bytes:
    thing, *rest = arguments
    options = [word for word in rest if word.startswith("-")]
    words = [thing, *(word for word in rest if not word.startswith("-"))]
    return await commands(("ip", "-4", *options, *words), ("ip", "-6", *options, *words))


async def _nftables() -> bytes:
    try:
        return await command("nft", "--stateless", "list", "ruleset")
    except Unavailable:
        return await asyncio.to_thread(_nftables_by_library)


def _nftables_by_library() -> bytes:
    library = Nftables()
    try:
        return library.run([{"list": {"ruleset": None}}])
    except NftablesError as error:
        raise Unavailable(str(error)) from None
    finally:
        library.close()
