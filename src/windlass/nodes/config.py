"""The agent's configuration: one YAML file, validated, with errors that say what to write instead."""

from __future__ import annotations

import difflib
import os
import platform
import sys
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta, Struct

from windlass.cluster.objects import type_sentence
from windlass.model.nodes import TrafficMode, TunnelType
from windlass.pipeline.snat_ports import HOST_RESERVED, UNRESERVED
from windlass.places import HERE


class DatapathType(Enum):
    SYSTEM = "system"  # the kernel's
    NETDEV = "netdev"  # ovs-vswitchd's own, in user space


class LogFormat(Enum):
    JSON = "json"
    TEXT = "text"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


InterfaceName = Annotated[str, Meta(pattern=r"^[^\s/]{1,15}$")]
# A NIC of Windows is called "Ethernet 2", or "vEthernet (Ethernet 2)".
NicName = Annotated[str, Meta(pattern=r"^[^/\\]{0,256}$" if sys.platform == "win32" else r"^[^\s/]{0,15}$")]
NODE_NAME_VARIABLE = "WINDLASS_NODE_NAME"  # an environment variable, so that all Nodes of a cluster can share one file


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the option and what to write."""


class Config(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Every option has a default. `make docs` writes the comment above an option into docs/configuration.md."""

    # The name of this Node's object in the cluster. Default: the environment variable WINDLASS_NODE_NAME, so that all
    # Nodes can share one file; if it is not set, the host name.
    node_name: Annotated[str, Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: os.environ.get(NODE_NAME_VARIABLE) or platform.node()
    )
    # How Pod traffic travels between Nodes: encap (in a tunnel), noEncap (without a tunnel; the network routes
    # PodCIDRs), hybrid (without a tunnel within a subnet, in a tunnel between subnets).
    traffic_mode: TrafficMode = TrafficMode.ENCAP
    # The tunnel's protocol: geneve or vxlan. It must be the same on all Nodes.
    tunnel_type: TunnelType = TunnelType.GENEVE
    # The datapath of the bridge: system (the kernel module openvswitch) or netdev (user space).
    datapath_type: DatapathType = DatapathType.SYSTEM
    # Networks of the Node addresses at which NodePorts answer. Empty: all addresses.
    node_port_addresses: tuple[str, ...] = ()
    # The range of NodePorts: the same as --service-node-port-range of the API server. It must not overlap the source
    # ports of translated connections.
    node_port_range: str = "30000-32767"
    # The ranges of ClusterIPs, in addition to ServiceCIDR objects. The host has one route for each range, and one for
    # each ClusterIP outside of all ranges. For each of these routes the switch has a flow that drops packets that it
    # cannot translate.
    service_cidrs: tuple[str, ...] = msgspec.field(default=(), name="serviceCIDRs")
    # The address:port at which load balancers check the Node's health (/healthz, /livez); without an address: all
    # addresses. Empty: none.
    healthz_bind_address: str = ":10256"
    # The address:port of the agent's Prometheus metrics (/metrics, and /proxyMode for clients of kube-proxy); without
    # an address: all addresses. Empty: only the local API has them.
    metrics_bind_address: str = "127.0.0.1:10249"
    # The name of the OVS bridge and of its interface, which gets the Node's addresses.
    bridge: InterfaceName = "br-int"
    # The NIC that becomes the uplink of the bridge. Empty: the NIC with the Node's address.
    uplink: NicName = ""
    # The name of the host's interface in the Pod network.
    gateway: InterfaceName = "windlass-gw0"
    # The name of the tunnel port.
    tunnel: InterfaceName = "windlass-tun0"
    # The MTU of Pods. 0: the MTU of the uplink minus the tunnel header.
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    # The limit of tracked connections for each CPU; a lower limit is raised to it. 0: the limit is not changed.
    conntrack_max_per_core: Annotated[int, Meta(ge=0)] = 32768
    # The minimum of that limit, whatever the number of CPUs, unless conntrackMaxPerCore is 0.
    conntrack_min: Annotated[int, Meta(ge=0)] = 131072
    # The kernel's timeout of an idle established TCP connection, in seconds. 0: not changed.
    conntrack_tcp_established_seconds: Annotated[int, Meta(ge=0, le=2147483)] = 86400
    # The same for a TCP connection that only one side has closed (CLOSE_WAIT).
    conntrack_tcp_close_wait_seconds: Annotated[int, Meta(ge=0, le=2147483)] = 3600
    # The same for a UDP connection without replies. 0: not changed.
    conntrack_udp_seconds: Annotated[int, Meta(ge=0, le=2147483)] = 0
    # The same for a UDP connection with replies. 0: not changed.
    conntrack_udp_stream_seconds: Annotated[int, Meta(ge=0, le=2147483)] = 0
    # Whether ports 12288-28671 and 32768-49151 are reserved for SNAT by the sysctl net.ipv4.ip_local_reserved_ports.
    # If false, or if nodePortRange overlaps them, there are fewer SNAT ports.
    reserve_local_ports: bool = True
    # Whether the switch counts packets for each rule of policies (`windlass policy counters`). This needs more flows.
    # If false, several rules may share a counter.
    count_policy_rules: bool = False
    # A folder or file of Kubernetes manifests with the state of the cluster. Empty: use the API server.
    manifests: str = ""
    # The kubeconfig file for the API server. Empty: the service account of the Pod that the agent runs in.
    kubeconfig: str = ""
    # The URL of the API server, such as https://10.0.0.1:6443. It overrides the kubeconfig and the Pod's environment,
    # which names a Service. It must work without Services, because the agent itself provides them.
    api_server: str = ""
    # The directory of the agent's sockets: agent.sock (local API), cni.sock (the CNI plugin).
    run_directory: str = HERE.run
    # The directory of files that must survive a reboot: allocated addresses, the last known good state.
    state_directory: str = HERE.state
    # The directory of Open vSwitch's sockets: db.sock and <bridge>.mgmt.
    ovs_run_directory: str = HERE.ovs_run
    # The path of the host-local IPAM plugin.
    ipam_plugin: str = HERE.ipam_plugin
    # The interval, in seconds, at which the agent compares all flows with the switch, in addition to reported changes.
    audit_seconds: Annotated[int, Meta(ge=1)] = 60
    # The format of the logs: json or text.
    log_format: LogFormat = LogFormat.JSON
    # The log level: debug, info, warning or error.
    log_level: LogLevel = LogLevel.INFO

    @property
    def is_userspace(self) -> bool:
        return self.datapath_type is DatapathType.NETDEV

    @property
    def node_ports(self) -> range:
        first, last = map(int, self.node_port_range.split("-"))
        return range(first, last + 1)

    @property
    def reserves_ports(self) -> bool:
        first, last = self.node_ports[0], self.node_ports[-1]
        return self.reserve_local_ports and all(last < low or high < first for low, high in HOST_RESERVED)

    @property
    def healthz(self) -> tuple[str, int] | None:
        """The address (empty: all) and port of the Node's own health check; None: there is none."""
        return _address_and_port(self.healthz_bind_address)

    @property
    def metrics(self) -> tuple[str, int] | None:
        """The address (empty: all) and port of the agent's metrics; None: only the local API has them."""
        return _address_and_port(self.metrics_bind_address)

    @property
    def api_socket(self) -> Path:
        return Path(self.run_directory) / "agent.sock"

    @property
    def cni_socket(self) -> Path:
        return Path(self.run_directory) / "cni.sock"

    @property
    def ovsdb_socket(self) -> Path:
        return Path(self.ovs_run_directory) / "db.sock"

    @property
    def openflow_socket(self) -> Path:
        return Path(self.ovs_run_directory) / f"{self.bridge}.mgmt"


def load(file: Path) -> Config:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return parse(content, str(file))


def parse(content: bytes, where: str) -> Config:
    try:
        options = yaml.load(content, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # the loader raises ValueError for a malformed date or number
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise ConfigError(f"{where}: expected options such as `trafficMode: encap`, got {type(options).__name__}")
    _refuse_unknown(options, where)
    try:
        config = msgspec.convert(options, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(str(error), options)}") from None
    _check(config, where)
    return config


def _refuse_unknown(options: dict[object, object], where: str) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(Config)}
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(str(option), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(sorted(known))}"
            raise ConfigError(f"{where}: {option}: there is no such option; {hint}")


def _sentence(error: str, options: dict[object, object]) -> str:
    what, _, path = error.partition(" - at `$.")
    option = path.rstrip("`").split("[")[0]
    for field in msgspec.structs.fields(Config):
        if field.encode_name == option and isinstance(field.type, type) and issubclass(field.type, Enum):
            choices = " or ".join(str(choice.value) for choice in field.type)
            return f"{option}: {options[option]!r} is not one of its values: {choices}"
    return f"{option}: {type_sentence(what)}; it is {options.get(option)!r}"


def _check(config: Config, where: str) -> None:
    for option, texts in (("nodePortAddresses", config.node_port_addresses), ("serviceCIDRs", config.service_cidrs)):
        for index, text in enumerate(texts):
            try:
                ip_network(text)
            except ValueError as error:
                raise ConfigError(f"{where}: {option}[{index}]: {error}") from None
    _check_node_ports(config.node_port_range, where)
    _check_bind_address("healthzBindAddress", config.healthz_bind_address, where)
    _check_bind_address("metricsBindAddress", config.metrics_bind_address, where)
    names = [config.bridge, config.gateway, config.tunnel, *([config.uplink] if config.uplink else [])]
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: bridge, gateway, tunnel and uplink need different names, got {', '.join(names)}")


def _check_node_ports(text: str, where: str) -> None:
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536):
        raise ConfigError(
            f"{where}: nodePortRange: {text!r} is not a range of ports; write the first and the last port, such as "
            "30000-32767"
        )
    for (used_first, used_last), by in ((UNRESERVED.pods, "Pods"), (UNRESERVED.services, "clients of Services")):
        if int(first) <= used_last and used_first <= int(last):
            raise ConfigError(
                f"{where}: nodePortRange: {text} overlaps {used_first}-{used_last}, the source ports of {by} "
                f"outside this Node; write a range outside of {UNRESERVED.pods[0]}-{UNRESERVED.services[1]}, in the "
                "API server's --service-node-port-range, too"
            )


def _address_and_port(text: str) -> tuple[str, int] | None:
    address, _, port = text.rpartition(":")
    return (address.strip("[]"), int(port)) if port else None


def _check_bind_address(option: str, text: str, where: str) -> None:
    address, colon, port = text.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    try:
        if address:
            (IPv6Address if bracketed else IPv4Address)(address.strip("[]"))
        usable = not text or (bool(colon) and int(port) in range(1, 65536))
    except ValueError:
        usable = False
    if not usable:
        examples = "such as 0.0.0.0:10256, [::1]:10256 or, for all addresses, :10256"
        raise ConfigError(f"{where}: {option}: {text!r} is not an address with a port; write one, {examples}")
