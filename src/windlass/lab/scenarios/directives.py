"""The lab's own objects: hosts outside the cluster, probes, actions, deletions. An unknown field is an error."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from windlass.lab.scenarios.objects import (
    IPFamily,
    LabMetadata,
    ProbeOutcome,
    ProbeProtocol,
    check_address,
    check_port,
    check_transport,
)
from windlass.model.families import IPAddress, IPNetwork

API_VERSION = "windlass.dev/v1alpha1"

MINIMUM_MTU, MAXIMUM_MTU = 1280, 1500  # the smallest that IPv6 allows; that of every other link of a lab

# Hosts --------------------------------------------------------------------------------------------------------


class HostPort(Struct, frozen=True, forbid_unknown_fields=True):
    port: int
    protocol: ProbeProtocol = ProbeProtocol.TCP

    def __post_init__(self) -> None:
        check_port("port", self.port)
        check_transport("protocol", self.protocol)


class ExternalHostSpec(Struct, frozen=True, forbid_unknown_fields=True):
    addresses: list[str]
    ports: list[HostPort] = []
    mtu: int | None = None  # the MTU of the link between the host's own router and the rest of the network

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ValueError("addresses: is empty; a host outside the cluster needs at least one address")
        for i, address in enumerate(self.addresses):
            check_address(f"addresses[{i}]", address)
        if self.mtu is not None and not MINIMUM_MTU <= self.mtu <= MAXIMUM_MTU:
            raise ValueError(f"mtu: {self.mtu} is outside {MINIMUM_MTU}-{MAXIMUM_MTU}")


class ExternalHost(Struct, frozen=True):
    """A machine outside the cluster. It answers on its ports as backend `externalHost/<name>`."""

    metadata: LabMetadata
    spec: ExternalHostSpec

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def addresses(self) -> tuple[IPAddress, ...]:
        return tuple(ip_address(address) for address in self.spec.addresses)


# Probes -------------------------------------------------------------------------------------------------------


class ProbeSource(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    node: str = ""
    pod: str = ""
    external_host: str = ""

    def __post_init__(self) -> None:
        _check_one(self, ("node", "pod", "externalHost"))
        _check_key("pod", self.pod)

    def __str__(self) -> str:
        if self.node:
            return f"Node {self.node}"
        return f"Pod {self.pod}" if self.pod else f"ExternalHost {self.external_host}"


class ProbeTarget(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """`to`: one of service, nodePort, loadBalancer, externalIP, pod or address; the other fields narrow it down."""

    service: str = ""
    node_port: str = ""
    load_balancer: str = ""
    external_ip: str = field(name="externalIP", default="")
    pod: str = ""
    address: str = ""  # a target of its own; with nodePort: which address of the Node
    port: int | str | None = None
    node: str = ""
    family: IPFamily | None = None

    def __post_init__(self) -> None:
        kinds = ("service", "nodePort", "loadBalancer", "externalIP", "pod")
        _check_one(self, kinds if self.node_port else (*kinds, "address"))
        for name in kinds:
            _check_key(name, _named(self, name))
        if self.address:
            check_address("address", self.address)
        if isinstance(self.port, int):
            check_port("port", self.port)
        if self.node_port and not self.node:
            raise ValueError("node: is missing; a NodePort probe names the Node to connect to")
        if self.node and (self.pod or self.address) and not self.node_port:
            raise ValueError("node: applies only to service, nodePort, loadBalancer and externalIP")
        if self.family and self.address:
            raise ValueError("family: does not apply to an address, which has its own family")


class Expectation(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    outcome: ProbeOutcome = ProbeOutcome.CONNECTED
    backends: list[str] | None = None
    sticky: bool = False
    client_address: str | None = None
    max_gap_milliseconds: int | None = None
    failures: int = 0

    def __post_init__(self) -> None:
        if self.client_address is not None and self.client_address not in {"Preserved", "Gateway", "Node"}:
            try:
                ip_address(self.client_address)
            except ValueError:
                raise ValueError(
                    f"clientAddress: {self.client_address!r} is neither an IP address nor one of "
                    "Preserved, Gateway, Node"
                ) from None


class WindowsDifference(Struct, frozen=True, forbid_unknown_fields=True):
    """What is expected instead if the addressed Node runs the programs of Windows."""

    why: str
    expect: Expectation


class ProbeSpec(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    source: ProbeSource = field(name="from")
    target: ProbeTarget = field(name="to")
    protocol: ProbeProtocol = ProbeProtocol.TCP
    connections: int = 10
    bytes: int = 0
    source_address: str | None = None
    hold: bool = False
    rate: int = 0
    expect: Expectation = Expectation()
    on_windows_host: WindowsDifference | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.on_windows_host and not self.target.node:
            raise ValueError("onWindowsHost: needs to.node, the Node whose host it is about")
        if self.connections < 1:
            raise ValueError(f"connections: {self.connections} is too few; the minimum is 1")
        if self.bytes < 0 or self.rate < 0:
            raise ValueError(f"{'bytes' if self.bytes < 0 else 'rate'}: must not be negative")
        if self.target.port is None and self.protocol is not ProbeProtocol.ICMP:
            raise ValueError(f"to.port: is missing; only ICMP has no ports, this is {self.protocol.value}")
        if self.hold and self.rate:
            raise ValueError("rate: a probe either holds one connection or opens new ones, not both")
        if self.source_address is not None:
            check_address("sourceAddress", self.source_address)
            if self.hold or self.rate:
                raise ValueError("sourceAddress: a spoofed packet gets no answer, so it cannot use hold or rate")
        if self.expect.max_gap_milliseconds is not None and not self.hold:
            raise ValueError("expect.maxGapMilliseconds: needs hold: true")
        if self.expect.failures and not self.rate:
            raise ValueError("expect.failures: needs a rate")


class Probe(Struct, frozen=True):
    metadata: LabMetadata
    spec: ProbeSpec

    @property
    def name(self) -> str:
        return self.metadata.name


# Actions and deletions ----------------------------------------------------------------------------------------


class HostRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """A route on a Node's host, as an administrator would add it."""

    node: str
    to: str
    mtu: int | None = None  # the MTU of the route
    type: Literal["unicast", "unreachable", "prohibit"] = "unicast"  # unicast: by the Node's default router

    def __post_init__(self) -> None:
        try:
            ip_network(self.to)
        except ValueError:
            raise ValueError(f"to: {self.to!r} is not a network") from None

    @property
    def network(self) -> IPNetwork:
        return ip_network(self.to)


class ActionSpec(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    restart_agent: str | UnsetType = UNSET
    kill_agent: str | UnsetType = UNSET  # SIGKILL, then start
    stop_agent: str | UnsetType = UNSET
    start_agent: str | UnsetType = UNSET
    restart_switch: str | UnsetType = UNSET
    delete_bridge: str | UnsetType = UNSET  # ovs-vsctl del-br
    reboot_node: str | UnsetType = UNSET  # keeps its files; a startAgent starts the agent again
    lose_database: str | UnsetType = UNSET  # both daemons restart with an empty database
    stop_api_server: str | bool | UnsetType | None = field(name="stopAPIServer", default=UNSET)
    start_api_server: str | bool | UnsetType | None = field(name="startAPIServer", default=UNSET)
    add_route: HostRoute | UnsetType = UNSET

    def __post_init__(self) -> None:
        if len(self._asked) != 1:
            raise ValueError(f"{' and '.join(self._asked) or 'nothing'}: an Action does exactly one thing")

    @property
    def verb(self) -> str:
        return self._asked[0]

    @property
    def node(self) -> str:
        """The Node that it acts on; empty for the API server, which belongs to none."""
        if isinstance(self.add_route, HostRoute):
            return self.add_route.node
        value = _named(self, self.verb)
        return value if isinstance(value, str) else ""

    @property
    def _asked(self) -> list[str]:
        return [name for name in self.__struct_encode_fields__ if _named(self, name) is not UNSET]


class StepAction(Struct, frozen=True):
    """Performed before the probes of its step."""

    metadata: LabMetadata
    spec: ActionSpec


class DeletionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str


class Deletion(Struct, frozen=True):
    """Deletes an object of an earlier step."""

    metadata: LabMetadata
    spec: DeletionSpec


Directive = ExternalHost | Probe | StepAction | Deletion

DIRECTIVE_KINDS: dict[str, type[Directive]] = {
    "ExternalHost": ExternalHost,
    "Probe": Probe,
    "Action": StepAction,
    "Delete": Deletion,
}


def is_of_the_lab(document: Mapping[str, object]) -> bool:
    """Not an object of another API, which may have kinds of the same names. A version is not required."""
    return document.get("apiVersion", API_VERSION) == API_VERSION


# Details ------------------------------------------------------------------------------------------------------


def _named(struct: Struct, name: str) -> object:
    """The value of the field that is called `name` in YAML."""
    return getattr(struct, struct.__struct_fields__[struct.__struct_encode_fields__.index(name)])


def _check_one(struct: Struct, names: tuple[str, ...]) -> None:
    given = [name for name in names if _named(struct, name)]
    if len(given) != 1:
        raise ValueError(f"has {' and '.join(given) or 'none'} of {', '.join(names)}; exactly one is required")


def _check_key(where: str, value: object) -> None:
    if isinstance(value, str) and value and value.count("/") != 1:
        raise ValueError(f"{where}: {value!r} is not of the form namespace/name")
