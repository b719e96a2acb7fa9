"""Where Windlass, Open vSwitch and the container runtime have their files by default, on each operating system."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    config: str  # the agent's configuration
    run: str  # the agent's sockets
    state: str  # what must survive a restart of the machine
    ovs_run: str  # the sockets of Open vSwitch
    cni_binaries: str
    cni_configurations: str
    ipam_plugin: str
    shipped_plugin: str  # the CNI plugin, as it comes with the agent


LINUX = Places(
    config="/etc/windlass/windlass.yaml",
    run="/run/windlass",
    state="/var/lib/windlass",
    ovs_run="/run/openvswitch",
    cni_binaries="/opt/cni/bin",
    cni_configurations="/etc/cni/net.d",
    ipam_plugin="/opt/cni/bin/host-local",
    shipped_plugin="/opt/windlass/cni/windlass-cni",
)
WINDOWS = Places(
    config="C:/ProgramData/windlass/windlass.yaml",
    run="C:/ProgramData/windlass/run",
    state="C:/ProgramData/windlass/state",
    ovs_run="C:/openvswitch/var/run/openvswitch",
    cni_binaries="C:/opt/cni/bin",
    cni_configurations="C:/etc/cni/net.d",
    ipam_plugin="C:/opt/cni/bin/host-local.exe",
    shipped_plugin="C:/Program Files/windlass/cni/windlass-cni.exe",
)
HERE = WINDOWS if sys.platform == "win32" else LINUX
