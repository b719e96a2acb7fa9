"""The network configuration that a runtime passes on standard input: versions, keys, what is refused. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_interface
from typing import TypeVar

import msgspec

from windlass.cni.errors import Code, RequestError
from windlass.model.families import IPAddress, family_of

SUPPORTED_VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")  # oldest first; the plugin's C source repeats them
NEWEST_VERSION = SUPPORTED_VERSIONS[-1]

_Form = TypeVar("_Form")
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")

# Part of a result as JSON: earlier plugins of a chain may use fields that are unknown here.
Fields = dict[str, str | int | None]


class Dns(msgspec.Struct, frozen=True, omit_defaults=True):
    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class PreviousResult(msgspec.Struct, frozen=True):
    """The result of earlier plugins of the chain (ADD), or the final result of ADD (CHECK)."""

    interfaces: tuple[Fields, ...] = ()
    ips: tuple[Fields, ...] = ()
    routes: tuple[Fields, ...] = ()
    dns: Dns | None = None


class _RuntimeDns(msgspec.Struct, frozen=True):
    """The capability `dns` names its lists differently from the rest of CNI."""

    servers: tuple[str, ...] | None = None
    searches: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


class _RuntimeConfig(msgspec.Struct, frozen=True, rename="camel"):
    dns: _RuntimeDns | None = None
    ips: tuple[str, ...] | None = None
    # A runtime passes these only if the configuration claims the capability; ignoring them would be wrong.
    port_mappings: msgspec.Raw = msgspec.Raw(b"null")
    bandwidth: msgspec.Raw = msgspec.Raw(b"null")
    ip_ranges: msgspec.Raw = msgspec.Raw(b"null")
    mac: msgspec.Raw = msgspec.Raw(b"null")


class _CniArguments(msgspec.Struct, frozen=True):
    ips: tuple[str, ...] | None = None


class _Arguments(msgspec.Struct, frozen=True):
    cni: _CniArguments | None = None


class _ValidAttachment(msgspec.Struct, frozen=True):
    container_id: str = msgspec.field(name="containerID")
    ifname: str


class Configuration(msgspec.Struct, frozen=True, rename="camel"):
    cni_version: str
    name: str
    ipam: dict[str, msgspec.Raw] | None = None
    dns: Dns | None = None
    runtime_config: _RuntimeConfig | None = None
    args: _Arguments | None = None
    previous_result: PreviousResult | None = msgspec.field(default=None, name="prevResult")
    # A Go runtime writes null for a list without members.
    valid_attachments: tuple[_ValidAttachment, ...] | msgspec.UnsetType | None = msgspec.field(
        default=msgspec.UNSET, name="cni.dev/valid-attachments"
    )


def decode(config: bytes, command: str, since: str = SUPPORTED_VERSIONS[0]) -> Configuration:
    version = _decoded(config, _VersionOnly).cni_version
    able = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index(since) :]
    if version not in able:
        raise RequestError(
            Code.INCOMPATIBLE_VERSION,
            f"the network configuration has cniVersion {version!r}",
            f"{command} is supported for {', '.join(able)}; set one of them in the network configuration.",
        )
    decoded = _decoded(config, Configuration)
    _check_name(decoded.name)
    return decoded


def version_asked(config: bytes) -> str:
    """The version of the reply, also if the rest of the configuration is unreadable."""
    try:
        asked = msgspec.json.decode(config, type=_VersionOnly).cni_version
    except _UNDECODABLE:
        return NEWEST_VERSION
    return asked if asked in SUPPORTED_VERSIONS else NEWEST_VERSION


def require_name(config: bytes) -> None:
    """The only requirement of DEL: a Pod must be removable even if its configuration has become invalid."""
    _check_name(_decoded(config, _NameOnly).name)


def refuse_unsupported(config: Configuration) -> None:
    """Refuse what would silently be ignored, naming key and value as the specification requires."""
    runtime = config.runtime_config or _RuntimeConfig()
    asked = {
        "runtimeConfig.portMappings": runtime.port_mappings,
        "runtimeConfig.bandwidth": runtime.bandwidth,
        "runtimeConfig.ipRanges": runtime.ip_ranges,
        "runtimeConfig.mac": runtime.mac,
    }
    for key, value in asked.items():
        if bytes(value) not in {b"null", b"[]", b"{}", b'""'}:
            raise RequestError(
                Code.UNSUPPORTED_FIELD,
                f"{key} is {_shown(value)}",
                "Windlass does not support this: remove the capability from its entry in the network configuration.",
            )
    for key, value in (config.ipam or {}).items():
        if (key, bytes(value)) != ("type", b'"host-local"'):
            raise RequestError(
                Code.UNSUPPORTED_FIELD,
                f"ipam.{key} is {_shown(value)}",
                "Windlass allocates addresses from the podCIDRs of the Node: remove ipam from the network "
                "configuration.",
            )


def requested(config: Configuration, argument: str) -> tuple[IPAddress, ...]:
    """The requested addresses: of the capability `ips`, else of `args`, else of CNI_ARGS."""
    runtime, args = config.runtime_config, config.args
    if runtime is not None and runtime.ips:
        return _one_of_a_family(runtime.ips, "runtimeConfig.ips")
    if args is not None and args.cni is not None and args.cni.ips:
        return _one_of_a_family(args.cni.ips, "args.cni.ips")
    if argument:
        return _one_of_a_family([argument], "IP in CNI_ARGS")
    return ()


def dns(config: Configuration) -> Dns:
    """The settings of the runtime take precedence: they are the Pod's own (Windows has no resolv.conf for them)."""
    static = config.dns or Dns()
    given = (config.runtime_config and config.runtime_config.dns) or _RuntimeDns()
    return Dns(
        nameservers=given.servers or static.nameservers,
        domain=static.domain,
        search=given.searches or static.search,
        options=given.options or static.options,
    )


def address(text: str, where: str) -> IPAddress:
    try:
        return ip_interface(text).ip
    except ValueError:
        raise RequestError(Code.INVALID_CONFIG, f"{where}: {text!r} is not an IP address") from None


# ---- details ----


class _NameOnly(msgspec.Struct, frozen=True):
    name: str


class _VersionOnly(msgspec.Struct, frozen=True, rename="camel"):
    cni_version: str = ""


def _decoded(config: bytes, form: type[_Form]) -> _Form:
    try:
        return msgspec.json.decode(config, type=form)
    except msgspec.ValidationError as error:
        raise RequestError(Code.INVALID_CONFIG, "the network configuration is invalid", f"{error}.") from error
    except _UNDECODABLE as error:
        raise RequestError(
            Code.UNDECODABLE, "the network configuration on standard input is not JSON", f"{error}."
        ) from error


def _check_name(name: str) -> None:
    if not _NETWORK_NAME.fullmatch(name):
        raise RequestError(
            Code.INVALID_CONFIG,
            f"the network configuration has the name {name!r}",
            "It must start with a letter or digit, followed by letters, digits, '_', '.' or '-'.",
        )


def _one_of_a_family(texts: Sequence[str], where: str) -> tuple[IPAddress, ...]:
    addresses = tuple(address(text, where) for text in texts)
    if len({family_of(address) for address in addresses}) != len(addresses):
        raise RequestError(
            Code.INVALID_CONFIG, f"{where} requests {', '.join(texts)}", "A Pod has one address of each family."
        )
    return addresses


def _shown(value: msgspec.Raw) -> str:
    return bytes(value)[:100].decode(errors="replace")
