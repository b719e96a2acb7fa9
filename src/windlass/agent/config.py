"""The agent's configuration: one YAML file, validated, with errors that say what to write instead."""

from __future__ import annotations

import difflib
import platform
from enum import Enum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta, Struct

from windlass.model.nodes import TrafficMode, TunnelType


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


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the option and what to write."""


class Config(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Every option has a sound default; a comment here is its documentation."""

    # The name of this Node's object in the cluster. Default: the host name.
    node_name: Annotated[str, Meta(min_length=1)] = msgspec.field(default_factory=platform.node)
    # How Pod traffic travels between Nodes: encap (a tunnel), noEncap (as it is; the network routes PodCIDRs),
    # hybrid (as it is within a subnet, a tunnel across).
    traffic_mode: TrafficMode = TrafficMode.ENCAP
    # The tunnel's protocol: geneve or vxlan. All Nodes must agree.
    tunnel_type: TunnelType = TunnelType.GENEVE
    # Which datapath the bridge uses: system (the kernel's) or netdev (user space).
    datapath_type: DatapathType = DatapathType.SYSTEM
    # On which of the Node's addresses NodePorts answer, as networks. Empty: on all.
    node_port_addresses: tuple[str, ...] = ()
    # The OVS bridge, and the name of the interface that takes over the Node's address.
    bridge: InterfaceName = "br-int"
    # The NIC that becomes the bridge's uplink. Empty: the one that holds the Node's address.
    uplink: Annotated[str, Meta(pattern=r"^[^\s/]{0,15}$")] = ""
    # The host's interface into the Pod network.
    gateway: InterfaceName = "windlass-gw0"
    # The tunnel port.
    tunnel: InterfaceName = "windlass-tun0"
    # The MTU of Pods. 0: the uplink's, less what the tunnel adds.
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    # A folder or file of Kubernetes manifests to take the cluster's state from.
    manifests: str = ""
    # Where the agent's sockets are: agent.sock (local API), cni.sock (the CNI plugin).
    run_directory: str = "/run/windlass"
    # What must survive a restart of the machine: addresses handed out, the last known good state.
    state_directory: str = "/var/lib/windlass"
    # Where Open vSwitch's sockets are: db.sock and <bridge>.mgmt.
    ovs_run_directory: str = "/run/openvswitch"
    # The host-local IPAM plugin.
    ipam_plugin: str = "/opt/cni/bin/host-local"
    # How often, in seconds, all flows are compared with the switch, beside the changes it reports by itself.
    audit_seconds: Annotated[int, Meta(ge=1)] = 60
    # json for machines, text for people.
    log_format: LogFormat = LogFormat.JSON
    # debug, info, warning or error.
    log_level: LogLevel = LogLevel.INFO

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
    except (yaml.YAMLError, ValueError) as error:  # a date or number that is none is a ValueError of the loader
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
    return f"{option}: {what[:1].lower()}{what[1:]}; it is {options.get(option)!r}"


def _check(config: Config, where: str) -> None:
    for index, text in enumerate(config.node_port_addresses):
        try:
            ip_network(text)
        except ValueError as error:
            raise ConfigError(f"{where}: nodePortAddresses[{index}]: {error}") from None
    names = [config.bridge, config.gateway, config.tunnel, *([config.uplink] if config.uplink else [])]
    if len(set(names)) != len(names):
        raise ConfigError(f"{where}: bridge, gateway, tunnel and uplink need different names, got {', '.join(names)}")
