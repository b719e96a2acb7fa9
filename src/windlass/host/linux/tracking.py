"""Reads and changes limit and timeouts of the kernel's conntrack, as `ConntrackSetting`.

Timeouts are those of the network namespace of the calling thread. The limit applies to all namespaces, and only the
initial one can change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from windlass.host.linux import settings
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.plans import ConntrackParameter, ConntrackSetting

LIMIT = "netfilter/nf_conntrack_max"
_BUCKETS = "netfilter/nf_conntrack_buckets"
_FILES = {
    ConntrackParameter.LIMIT: LIMIT,
    ConntrackParameter.TCP_ESTABLISHED: "netfilter/nf_conntrack_tcp_timeout_established",
    ConntrackParameter.TCP_CLOSE_WAIT: "netfilter/nf_conntrack_tcp_timeout_close_wait",
    ConntrackParameter.UDP: "netfilter/nf_conntrack_udp_timeout",
    ConntrackParameter.UDP_STREAM: "netfilter/nf_conntrack_udp_timeout_stream",
}
_PER_BUCKET = 4  # connections: with more, lookups take longer


def installed() -> Iterator[ConntrackSetting]:
    """The settings that can be changed here; none before the kernel has loaded conntrack."""
    for what, file in _FILES.items():
        with suppress(OSError, ValueError):
            value = int(settings.read_file(file))
            unlimited = what is ConntrackParameter.LIMIT and value == 0
            if settings.is_writable(file) and not unlimited:
                yield ConntrackSetting(what, value)


def write(formers: FormerSettings, wanted: Collection[ConntrackSetting]) -> list[str]:
    """Change each setting, even if others fail. Returns a sentence for each failure."""
    problems = []
    for setting in sorted(wanted, key=str):
        try:
            settings.change_file(formers, _FILES[setting.what], setting.value)
            if setting.what is ConntrackParameter.LIMIT:
                _add_buckets(formers, setting.value // _PER_BUCKET)
        except OSError as error:
            problems.append(f"could not set {setting} (net/{_FILES[setting.what]}): {error.strerror}")
    return problems


def _add_buckets(formers: FormerSettings, wanted: int) -> None:
    if int(settings.read_file(_BUCKETS)) < wanted:
        settings.change_file(formers, _BUCKETS, wanted)
        formers.remember_sysctl(_BUCKETS, str(wanted), settings.read_file(_BUCKETS))  # the kernel rounds up
