"""Reads names and policies of firewall chains, of nftables and of iptables-legacy."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.host.linux.netlink import NETLINK_NETFILTER, Netlink, NetlinkError, as_text, attributes
from windlass.model.families import Family

_GET_CHAINS = 10 << 8 | 4  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETCHAIN
_TABLE, _NAME, _HOOK, _POLICY, _HOOK_NUMBER = 1, 3, 4, 5, 1
_FORWARD_HOOK, _DROP = 2, 0
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

# iptables-legacy, read with getsockopt: a table is one blob of entries.
_GET_INFO, _GET_ENTRIES = 64, 65
_LEVELS = {Family.IPV4: socket.SOL_IP, Family.IPV6: socket.IPPROTO_IPV6}
_NAMES = {
    Family.IPV4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.IPV6: Path("/proc/thread-self/net/ip6_tables_names"),
}
_SOCKETS = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_TARGET_OFFSET = {Family.IPV4: 88, Family.IPV6: 140}  # where an entry has the offset of its target: 16 bits
_INFO = struct.Struct("=32sI5I5III")  # name, hooks, where each begins, where its policy is, entries, size
_ENTRIES_HEADER = 40
_TARGET_HEADER = 32
_LEGACY_DROP = -1  # a verdict of iptables is -NF_DROP - 1


@dataclass(frozen=True, slots=True)
class FirewallChain:
    table: str  # such as `ip filter`
    name: str
    drops_forwarded: bool  # at the hook `forward` with policy drop

    def __str__(self) -> str:
        return f"chain {self.name} of nftables table {self.table}"


def nftables_chains() -> list[FirewallChain] | None:
    """All chains, including those of iptables-nft. None if this kernel has no nftables."""
    with Netlink(protocol=NETLINK_NETFILTER) as netfilter:
        try:
            return [_chain(body) for body in netfilter.dump(_GET_CHAINS, struct.pack("=BBH", 0, 0, 0))]
        except NetlinkError as error:
            if error.errno in {errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT}:
                return None
            raise


def legacy_drops() -> Iterator[str]:
    """The chains of iptables-legacy whose policy drops forwarded packets."""
    for family, command in ((Family.IPV4, "iptables"), (Family.IPV6, "ip6tables")):
        if "filter" in _legacy_tables(family):
            entries, policy_at = _legacy_table(family, "filter", _FORWARD_HOOK)
            (target,) = struct.unpack_from("=H", entries, policy_at + _TARGET_OFFSET[family])
            (verdict,) = struct.unpack_from("=i", entries, policy_at + target + _TARGET_HEADER)
            if verdict == _LEGACY_DROP:
                yield f"chain FORWARD of {command}-legacy"


def legacy_mentions(chain: str) -> bool:
    """A NAT table of iptables-legacy contains this chain."""
    wanted = chain.encode() + b"\0"
    return any(
        wanted in _legacy_table(family, "nat", _FORWARD_HOOK)[0] for family in Family if "nat" in _legacy_tables(family)
    )


def _chain(body: bytes) -> FirewallChain:
    parts = attributes(body, 4)
    hook = attributes(parts.get(_HOOK, b"")).get(_HOOK_NUMBER, b"")
    at_forward = bool(hook) and int.from_bytes(hook) == _FORWARD_HOOK and body[0] in {1, 2, 10}
    drops = _POLICY in parts and int.from_bytes(parts[_POLICY]) == _DROP
    table = f"{_FAMILIES.get(body[0], body[0])} {as_text(parts.get(_TABLE, b''))}"
    return FirewallChain(table, as_text(parts.get(_NAME, b"")), at_forward and drops)


def _legacy_tables(family: Family) -> list[str]:
    """The tables in use. Asking for any other table would create it."""
    try:
        return _NAMES[family].read_text().split()
    except OSError:
        return []


def _legacy_table(family: Family, table: str, hook: int) -> tuple[bytes, int]:
    """All entries, and the offset of the policy of a hook in them."""
    with socket.socket(_SOCKETS[family], socket.SOCK_DGRAM) as sock:
        info = _INFO.unpack(_getsockopt(sock, _LEVELS[family], _GET_INFO, _INFO.size, table.encode()))
        policies, size = info[7:12], info[13]
        header = struct.pack("=32sI4x", table.encode(), size)
        entries = _getsockopt(sock, _LEVELS[family], _GET_ENTRIES, _ENTRIES_HEADER + size, header)
    return entries[_ENTRIES_HEADER:], policies[hook]


def _getsockopt(sock: socket.socket, level: int, option: int, length: int, question: bytes) -> bytes:
    """`socket.getsockopt` cannot pass input to the kernel."""
    data = ctypes.create_string_buffer(question, length)
    size = ctypes.c_uint(length)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(sock.fileno(), level, option, data, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "the iptables tables cannot be read")
    return data.raw
