"""The address of the API server and the credentials for it, from a kubeconfig or from the service account of a Pod.

They are read for each request, because tokens and certificates are replaced on disk while the agent runs.
"""

from __future__ import annotations

import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Struct

from windlass.cluster.objects import field_sentence
from windlass.cluster.sources import SourceAway

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_VARIABLE, PORT_VARIABLE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class NoAccess(SourceAway):
    """Address or credentials are missing. The message says which, and which setting to check."""


class Access(Struct, frozen=True):
    server: str  # https://10.0.0.1:6443
    named_by: str  # the setting that the address of the server comes from
    identity: str  # the credentials, in words
    authority: str = ""  # certificate authorities of the server, as PEM; empty: those that this system trusts
    certificate: str = ""
    key: str = ""
    token: str = ""
    server_name: str = ""  # the name in the certificate of the server, if it is not the address
    is_unverified: bool = False

    @property
    def host(self) -> str:
        return urlsplit(self.server).hostname or ""


Reader = Callable[[], Access]


def reader(kubeconfig: str = "", api_server: str = "") -> Reader:
    """`api_server` overrides the address in the kubeconfig or in the environment of the Pod.

    An agent that provides the Services of the cluster needs it: the address in its environment is that of a Service.
    """
    if kubeconfig:
        return lambda: from_kubeconfig(Path(kubeconfig), api_server)
    return lambda: in_cluster(api_server)


def in_cluster(
    api_server: str = "", account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ
) -> Access:
    host, port = environment.get(HOST_VARIABLE, ""), environment.get(PORT_VARIABLE, "443")
    if not api_server and not host:
        raise NoAccess(
            f"there is no address of an API server: {HOST_VARIABLE} is not set, as it is in a Pod; "
            "set `apiServer`, or `kubeconfig` outside of a cluster, in the configuration"
        )
    token = account / "token"
    return Access(
        _server(api_server, "`apiServer` in the configuration") if api_server else f"https://{_bracketed(host)}:{port}",
        "`apiServer` in the configuration" if api_server else f"{HOST_VARIABLE} in the environment",
        f"the token in {token}",
        authority=_read(account / "ca.crt", "the service account"),
        token=_read(token, "the service account").strip(),
    )


class _Cluster(Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    # Not supported: read for the error message only.
    exec: object = None
    auth_provider: object = None
    username: str | None = None


class _Context(Struct):
    cluster: str
    user: str = ""


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _NamedUser(Struct):
    name: str
    user: _User | None = None


class _NamedContext(Struct):
    name: str
    context: _Context


class _Kubeconfig(Struct, rename="kebab"):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


Named = TypeVar("Named", _NamedCluster, _NamedUser, _NamedContext)


def from_kubeconfig(file: Path, api_server: str = "") -> Access:
    """The server and the user of the current context. Paths in a kubeconfig are relative to its folder."""
    content = _read(file, "`kubeconfig` in the configuration")
    try:
        config = msgspec.convert(yaml.load(content, yaml.CSafeLoader), _Kubeconfig)
    except msgspec.ValidationError as error:
        raise NoAccess(f"{file}: not a kubeconfig: {field_sentence(str(error))}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise NoAccess(f"{file}: not valid YAML: {getattr(error, 'problem', error)}") from None
    context = _named(config.contexts, config.current_context, "contexts", "current-context", file).context
    cluster = _named(config.clusters, context.cluster, "clusters", f"context {config.current_context}", file).cluster
    user = (_named(config.users, context.user, "users", f"context {config.current_context}", file).user) or _User()
    if user.exec or user.auth_provider or user.username:
        raise NoAccess(
            f"{file}: user {context.user} has neither a token nor a client certificate, but a program or a password; "
            "the agent takes `token`, `tokenFile` or `client-certificate` with `client-key`"
        )
    if cluster.proxy_url:
        raise NoAccess(f"{file}: cluster {context.cluster}: `proxy-url` is not supported; name the server itself")
    owner = f"user {context.user} in {file}"
    certificate = _either(file, user.client_certificate_data, user.client_certificate, "client-certificate")
    token = user.token or (_read(file.parent / user.token_file, str(file)).strip() if user.token_file else "")
    return Access(
        _server(api_server, "`apiServer` in the configuration") if api_server else _server(cluster.server, str(file)),
        "`apiServer` in the configuration" if api_server else str(file),
        f"the {'client certificate' if certificate else 'token'} of {owner}" if certificate or token else owner,
        authority=_either(
            file, cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority"
        ),
        certificate=certificate,
        key=_either(file, user.client_key_data, user.client_key, "client-key"),
        token=token,
        server_name=cluster.tls_server_name or "",
        is_unverified=bool(cluster.insecure_skip_tls_verify),
    )


def _named(candidates: tuple[Named, ...] | None, name: str, what: str, by: str, file: Path) -> Named:
    for one in candidates or ():
        if one.name == name:
            return one
    there = ", ".join(one.name for one in candidates or ()) or "none"
    raise NoAccess(f"{file}: {by} names {name!r}, which is not among its {what} (known: {there})")


def _either(file: Path, data: str | None, path: str | None, field: str) -> str:
    if data:
        try:
            return b64decode(data, validate=True).decode()
        except (Base64Error, UnicodeDecodeError):
            raise NoAccess(f"{file}: {field}-data is not PEM in base64") from None
    return _read(file.parent / path, f"{field} in {file}") if path else ""


def _read(file: Path, named_by: str) -> str:
    try:
        content = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoAccess(f"{file}: cannot be read: {reason}; check {named_by}") from None
    if not content.strip():
        raise NoAccess(f"{file}: it is empty; check {named_by}")
    return content


def _server(text: str, named_by: str) -> str:
    """The address with a scheme, and without a slash at the end."""
    server = text.strip().rstrip("/")
    server = server if "://" in server else f"https://{server}"
    try:
        parts = urlsplit(server)
        is_good = parts.scheme in {"https", "http"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is not a number, or an unmatched bracket
        is_good = False
    if not is_good:
        raise NoAccess(f"{text!r} is not an address such as https://10.0.0.1:6443; check {named_by}")
    return server


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
