"""The parts of a support bundle: what each is, and how it is collected. No file that exists to hold secrets is read.

They are independent of one another: most of them can be had without an agent, many without Open vSwitch.
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

# What is asked of the agent: a path of its local API, and what is asked there.
AskAgent = Callable[[str, Mapping[str, str]], bytes]

# Each is the work of ovs-vswitchd's main thread: nothing here may walk through all connections or all datapath flows.
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
class Part:
    name: str  # of the file in the bundle
    what: str
    collect: Callable[[], Awaitable[bytes]]


def parts(config: Config, config_file: Path, ask: AskAgent) -> tuple[Part, ...]:
    return (*_of_agent(config, config_file, ask), *_of_switch(config), *_of_host(config), *_logs(ask))


def _of_agent(config: Config, config_file: Path, ask: AskAgent) -> tuple[Part, ...]:
    def asked(path: str, **query: str) -> Callable[[], Awaitable[bytes]]:
        return lambda: asyncio.to_thread(ask, path, query)

    named = ("--config", str(config_file)) if config_file.exists() else ()

    async def preflight() -> bytes:
        """In a process of its own, with the modules of this one: in the image they are at no usual place."""
        program = f"import sys; sys.path[:] = {sys.path!r}; from windlass.cli import main; main()"
        return await command(sys.executable, "-c", program, "preflight", *named, called="windlass preflight")

    return (
        Part("versions.txt", "versions of Windlass, Python, the kernel and Open vSwitch", _versions),
        Part("status.json", "what `windlass status` says, for machines", asked("/v1/state")),
        Part("metrics.txt", "the metrics", asked("/metrics")),
        Part("flows.json", "the flows that the agent wants, with names, owners and reasons", asked("/v1/flows")),
        Part("groups.json", "the groups that the agent wants", asked("/v1/groups")),
        Part(
            "preflight.txt",
            "what `windlass preflight` says",
            preflight,
        ),
        Part("configuration/windlass.yaml", "the configuration of the agent", lambda: file(config_file)),
        Part("configuration/cni.txt", "names of the CNI configurations, without their content", _cni),
        Part(
            "cluster.json", "Nodes, Services, endpoints and Pods' addresses, as last applied", lambda: _cluster(config)
        ),
    )


def _of_switch(config: Config) -> tuple[Part, ...]:
    bridge = f"unix:{config.openflow_socket}"
    database = f"unix:{config.ovsdb_socket}"

    def ofctl(*arguments: str) -> Callable[[], Awaitable[bytes]]:
        return lambda: command("ovs-ofctl", "-O", "OpenFlow15", "--names", "--timeout=9", arguments[0], bridge)

    return (
        Part("switch/flows.txt", "the flows that the switch holds, with counters", ofctl("dump-flows")),
        Part("switch/groups.txt", "the groups that the switch holds", ofctl("dump-groups")),
        Part("switch/group-counters.txt", "counters of the groups", ofctl("dump-group-stats")),
        Part("switch/meters.txt", "the meters and their counters", ofctl("meter-stats")),
        Part("switch/ports.txt", "the ports of the bridge", ofctl("dump-ports-desc")),
        Part("switch/port-counters.txt", "counters of the ports", ofctl("dump-ports")),
        Part("switch/database.txt", "the database of Open vSwitch", lambda: command("ovsdb-client", "dump", database)),
        Part(
            "switch/vswitchd.txt",
            "state of ovs-vswitchd: datapath, upcalls, memory, tunnels",
            lambda: control(config.ovs_run_directory, *_CONTROL),
        ),
        Part(
            "switch/connections.txt",
            "how many connections the userspace datapath tracks, without the connections",
            lambda: control(config.ovs_run_directory, *_CONNECTIONS),
        ),
    )


def _of_host(config: Config) -> tuple[Part, ...]:
    record = Path(config.state_directory) / "uplink.json"
    return (
        Part("host/interfaces.txt", "interfaces and addresses", lambda: _ip("address", "-details", "-statistics")),
        Part("host/routes.txt", "routes of all tables", lambda: _ip("route", "show", "table", "all")),
        Part("host/rules.txt", "routing rules", lambda: _ip("rule")),
        Part("host/neighbours.txt", "neighbours", lambda: _ip("neighbour")),
        Part(
            "host/proc-net.txt", "the kernel's own tables", lambda: files(*(Path("/proc/net") / name for name in _PROC))
        ),
        Part("host/nftables.txt", "nftables rules, those of iptables-nft included", _nftables),
        Part(
            "host/sysctls.txt",
            "settings of the network",
            lambda: files(*(Path("/proc/sys") / name for name in _SYSCTLS)),
        ),
        Part("host/modules.txt", "kernel modules", lambda: file(Path("/proc/modules"))),
        Part("host/uplink.json", "what was moved from the NIC to the bridge", lambda: file(record)),
    )


def _logs(ask: AskAgent) -> tuple[Part, ...]:
    places = (Path("/var/log/openvswitch").glob("*.log"), Path("/var/log/pods").glob("*_windlass-*/*/*.log"))
    found = sorted(path for place in places for path in place)
    return (
        Part("logs/agent.log", "the last lines of the agent's log", lambda: asyncio.to_thread(ask, "/v1/logs", {})),
        Part("logs/files.txt", "the ends of log files", lambda: files(*found, last=_LOG)),
        Part(
            "logs/journal.txt",
            "the journal of the services that may be concerned",
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
    """By its typed form: it has no annotations, no environment and nothing else that Windlass does not use."""
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
