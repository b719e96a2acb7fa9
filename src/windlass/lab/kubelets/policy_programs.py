"""The suites of tests about policies that are not Kubernetes' own, and where `tools/build-policy-suites` puts them.

It uses only the standard library, because that tool runs before anything is installed.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

CYCLONUS = "github.com/mattfenwick/cyclonus@v0.5.6"
NETWORK_POLICY_API = "sigs.k8s.io/network-policy-api@v0.2.0"


@dataclass(frozen=True, slots=True)
class PolicyPrograms:
    cyclonus: Path
    conformance: Path  # the tests of network-policy-api
    conformance_without_sctp: Path  # the same without servers for SCTP: their Pods start on a kernel without it
    crd: Path  # the definition of ClusterNetworkPolicy, with its experimental fields


def directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    versions = "-".join(name.partition("@v")[2] for name in (CYCLONUS, NETWORK_POLICY_API))
    return Path(cache) / f"windlass/policy-suites-{versions}"


def programs() -> PolicyPrograms:
    folder = directory()
    return PolicyPrograms(
        folder / "cyclonus",
        folder / "cnp-conformance",
        folder / "cnp-conformance-without-sctp",
        folder / "clusternetworkpolicies.yaml",
    )


def has_sctp() -> bool:
    """Whether this kernel has SCTP, which some tests need."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        return False
    return True
