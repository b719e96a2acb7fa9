"""The requests of a container runtime, parsed and validated (CNI 0.3.1 to 1.1.0). No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from windlass.cni import configurations
from windlass.cni.attachments import Attachment
from windlass.cni.configurations import Configuration, Dns, PreviousResult
from windlass.cni.errors import Code, RequestError
from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class AddRequest:
    version: str
    attachment: Attachment
    netns: str
    namespace: str
    name: str
    uid: str  # the UID of the Pod; empty if the runtime does not pass it
    requested: tuple[IPAddress, ...]  # addresses for the Pod, at most one of each family
    dns: Dns
    previous: PreviousResult
    container: str = ""  # docker on Windows: the container that joins the network of the sandbox in `attachment`

    @property
    def is_workload(self) -> bool:
        """Whether this is another container of a Pod, not its sandbox."""
        return self.container not in {"", self.attachment.container_id}


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    attachment: Attachment
    name: str | None  # the name of the Pod, if the runtime passes it


@dataclass(frozen=True, slots=True)
class CheckRequest:
    attachment: Attachment
    netns: str
    expected: tuple[IPAddress, ...]


@dataclass(frozen=True, slots=True)
class GarbageRequest:
    valid: frozenset[Attachment]


@dataclass(frozen=True, slots=True)
class StatusRequest:
    pass


@dataclass(frozen=True, slots=True)
class VersionRequest:
    version: str


Request = AddRequest | DeleteRequest | CheckRequest | GarbageRequest | StatusRequest | VersionRequest
COMMANDS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION")
UNKNOWN = "unknown"  # any other command


def parse(environment: Mapping[str, str], config: bytes) -> Request:
    """Raises RequestError with the code of the CNI specification."""
    command = environment.get("CNI_COMMAND", "")
    match command:
        case "ADD":
            return _add(environment, configurations.decode(config, command))
        case "DEL":
            return _delete(environment, config)
        case "CHECK":
            return _check(environment, configurations.decode(config, command, since="0.4.0"))
        case "GC":
            return _collect_garbage(configurations.decode(config, command, since="1.1.0"))
        case "STATUS":
            configurations.decode(config, command, since="1.1.0")
            return StatusRequest()
        case "VERSION":
            return VersionRequest(configurations.version_asked(config))
    raise RequestError(
        Code.INVALID_ENVIRONMENT,
        f"CNI_COMMAND is {command!r}",
        f"It must be {', '.join(COMMANDS[:-1])} or {COMMANDS[-1]}.",
    )


# ---- each command ----


def _add(environment: Mapping[str, str], config: Configuration) -> AddRequest:
    configurations.refuse_unsupported(config)
    arguments = _arguments(environment)
    namespace, name = arguments.get("K8S_POD_NAMESPACE", ""), arguments.get("K8S_POD_NAME", "")
    if not _LABEL.fullmatch(namespace) or not _SUBDOMAIN.fullmatch(name):
        raise RequestError(
            Code.INVALID_ENVIRONMENT,
            f"CNI_ARGS names no Pod: K8S_POD_NAMESPACE is {namespace!r}, K8S_POD_NAME is {name!r}",
            "Windlass attaches Kubernetes Pods only; the runtime must pass both.",
        )
    attachment, netns = _attachment(environment), _netns(environment)
    container = attachment.container_id if netns == _DOCKER_SANDBOX or netns.startswith(_DOCKER_WORKLOAD) else ""
    if netns.startswith(_DOCKER_WORKLOAD):
        attachment, netns = Attachment(netns.removeprefix(_DOCKER_WORKLOAD), attachment.ifname), _DOCKER_SANDBOX
    return AddRequest(
        version=config.cni_version,
        attachment=attachment,
        netns=netns,
        namespace=namespace,
        name=name,
        uid=arguments.get("K8S_POD_UID", ""),
        requested=configurations.requested(config, arguments.get("IP", "")),
        dns=configurations.dns(config),
        previous=config.previous_result or PreviousResult(),
        container=container,
    )


def _delete(environment: Mapping[str, str], config: bytes) -> DeleteRequest:
    configurations.require_name(config)
    try:
        name = _arguments(environment).get("K8S_POD_NAME")
    except RequestError:
        name = None
    return DeleteRequest(_attachment(environment), name if name and _SUBDOMAIN.fullmatch(name) else None)


def _check(environment: Mapping[str, str], config: Configuration) -> CheckRequest:
    if config.previous_result is None:
        raise RequestError(
            Code.INVALID_CONFIG,
            "the network configuration has no prevResult",
            "CHECK compares the Pod's network with the result of ADD; the runtime must pass it.",
        )
    expected = tuple(
        configurations.address(str(ip.get("address", "")), f"prevResult.ips[{index}].address")
        for index, ip in enumerate(config.previous_result.ips)
    )
    return CheckRequest(_attachment(environment), _netns(environment), expected)


def _collect_garbage(config: Configuration) -> GarbageRequest:
    valid = config.valid_attachments
    if valid is msgspec.UNSET:
        # Treating it as an empty list would remove the network of every Pod on the Node.
        raise RequestError(
            Code.INVALID_CONFIG,
            "the network configuration has no cni.dev/valid-attachments",
            "GC removes every attachment that is not listed there; without the list nothing is removed.",
        )
    return GarbageRequest(frozenset(Attachment(a.container_id, a.ifname) for a in valid or ()))


# ---- the environment ----

# What docker passes on Windows instead of a namespace: for the sandbox, and before the sandbox's ID for its workloads.
_DOCKER_SANDBOX, _DOCKER_WORKLOAD = "none", "container:"
_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")
_IFNAME = re.compile(r"[^/:\s\0]{1,15}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def _attachment(environment: Mapping[str, str]) -> Attachment:
    container_id, ifname = environment.get("CNI_CONTAINERID", ""), environment.get("CNI_IFNAME", "")
    if not _CONTAINER_ID.fullmatch(container_id):
        raise RequestError(
            Code.INVALID_ENVIRONMENT,
            f"CNI_CONTAINERID is {container_id!r}",
            "It must start with a letter or digit, followed by at most 254 letters, digits, '_', '.' or '-'.",
        )
    if not _IFNAME.fullmatch(ifname) or ifname in {".", ".."}:
        raise RequestError(
            Code.INVALID_ENVIRONMENT,
            f"CNI_IFNAME is {ifname!r}",
            "It must be an interface name: 1 to 15 characters without space, '/' and ':'.",
        )
    return Attachment(container_id, ifname)


def _netns(environment: Mapping[str, str]) -> str:
    netns = environment.get("CNI_NETNS", "")
    if not netns:
        raise RequestError(
            Code.INVALID_ENVIRONMENT,
            "CNI_NETNS is empty",
            "It must name the network namespace of the Pod; only DEL works without it.",
        )
    return netns


def _arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """The pairs of CNI_ARGS. Unknown keys are ignored, with or without IgnoreUnknown."""
    found: dict[str, str] = {}
    for pair in filter(None, environment.get("CNI_ARGS", "").split(";")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise RequestError(
                Code.INVALID_ENVIRONMENT,
                f"CNI_ARGS has {pair!r}, which is not of the form KEY=VALUE",
                "Pairs are separated by semicolons.",
            )
        found[key] = value
    return found
