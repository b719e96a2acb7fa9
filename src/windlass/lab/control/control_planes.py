"""A real control plane as children of the lab: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

All run in one network namespace. `tools/build-kubernetes` builds the programs.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from windlass.cluster.kubernetes.connections import (
    AddressInfo,
    APIConnection,
    RequestRefused,
    SocketFactory,
    Unreachable,
    watched_socket,
)
from windlass.cluster.kubernetes.credentials import Access, from_kubeconfig
from windlass.host.linux import namespaces
from windlass.lab.control import certificates
from windlass.lab.control.kubernetes_binaries import missing, path_of
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child, program
from windlass.lab.sandbox.time_limits import seconds
from windlass.model.families import IPAddress

PORT = 6443
SECONDS_TO_START = seconds(120.0)  # usually 3 to 5 s on two idle cores
SECONDS_BETWEEN_POLLS = 0.1
ETCD = "http://127.0.0.1:2379"

# Users with their groups. The token of a user is its name: only the lab can reach this server.
ADMINISTRATOR, CONTROLLERS, SCHEDULER, AGENT = (
    "admin",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "windlass",
)
# The controllers may do everything: a usual cluster has an account for each, which another controller creates.
USERS = {ADMINISTRATOR: "system:masters", CONTROLLERS: "system:masters", SCHEDULER: "system:masters", AGENT: ""}

SERVICE_NETWORKS = ("10.96.0.0/12", "fd00:10:96::/112")


@dataclass(frozen=True, slots=True)
class Extent:
    """Which parts of a control plane run, as options of its programs."""

    server: tuple[str, ...]
    controllers: tuple[str, ...]


# For objects that the lab writes. It runs only the controllers that create and remove EndpointSlices: others would
# consider Nodes without a kubelet dead. Its Pods have no service accounts, since no controller creates them.
OBJECTS_ONLY = Extent(
    server=(
        f"--service-cluster-ip-range={','.join(SERVICE_NETWORKS)}",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
    ),
    controllers=("--controllers=endpointslice-controller,garbage-collector-controller,namespace-controller",),
)


def kubelet_user(node: str) -> str:
    return f"system:node:{node}"


def url_at(address: IPAddress) -> str:
    return f"https://[{address}]:{PORT}" if address.version == 6 else f"https://{address}:{PORT}"


class ControlPlane:
    """Call `start`, and `start_controllers` if the controllers are needed."""

    def __init__(
        self,
        namespace: str,
        folder: Path,
        addresses: Sequence[IPAddress],
        extent: Extent = OBJECTS_ONLY,
        kubelets: Sequence[str] = (),
    ) -> None:
        """`addresses` are those of the server, on an interface of the namespace; it advertises the first.

        `kubelets` are the names of Nodes whose kubelets may connect.
        """
        self.folder = folder
        self._extent = extent
        self._users = {**USERS, **{kubelet_user(node): "system:nodes" for node in kubelets}}
        self._addresses = addresses
        self.namespace = namespace
        self._etcd: Child | None = None
        self._server: Child | None = None
        self._others: list[Child] = []

    @property
    def url(self) -> str:
        return url_at(self._addresses[0])

    def kubeconfig(self, user: str = ADMINISTRATOR) -> Path:
        return self.folder / f"{user.replace(':', '-')}.kubeconfig"

    def access(self, user: str = ADMINISTRATOR) -> Access:
        return from_kubeconfig(self.kubeconfig(user))

    @property
    def socket_factory(self) -> SocketFactory:
        """Connects to the server from this process, which is in another namespace."""

        def made(address: AddressInfo) -> socket.socket:
            with namespaces.entered(namespaces.path_of(self.namespace)):
                return watched_socket(address)

        return made

    def connection(self, user: str = ADMINISTRATOR) -> APIConnection:
        return APIConnection(lambda: self.access(user), self.socket_factory)

    async def start(self) -> None:
        if absent := missing("etcd", "kube-apiserver"):
            raise LabError(absent)
        self.folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._write_credentials)
        self._etcd = self._child(
            "etcd",
            *("--name=lab", f"--data-dir={self.folder}/etcd", "--log-level=warn", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"),
            *("--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380"),
            "--initial-cluster=lab=http://127.0.0.1:2380",
        )
        await self.start_server()

    async def start_server(self) -> None:
        """Start the server; after `stop_server`, it has the content of etcd again."""
        self._server = self._child("kube-apiserver", *self._server_arguments())
        await self._answers(self._server)

    async def stop_server(self) -> None:
        """Kills it, like a crash."""
        if self._server:
            await self._server.kill()

    async def start_controllers(self) -> None:
        if absent := missing("kube-controller-manager"):
            raise LabError(absent)
        self._others.append(
            self._child(
                "kube-controller-manager",
                *(f"--{name}={self.kubeconfig(CONTROLLERS)}" for name in _KUBECONFIG_OPTIONS),
                *self._extent.controllers,
                f"--service-account-private-key-file={self.folder}/accounts.key",
                f"--root-ca-file={self.folder}/ca.crt",
                *("--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false"),
                # No client-side rate limit: the lab waits for each write.
                *("--kube-api-qps=1000", "--kube-api-burst=1000"),
            )
        )

    async def start_scheduler(self) -> None:
        if absent := missing("kube-scheduler"):
            raise LabError(absent)
        options = [f"--{name}={self.kubeconfig(SCHEDULER)}" for name in _KUBECONFIG_OPTIONS]
        self._others.append(self._child("kube-scheduler", *options, "--leader-elect=false", "--bind-address=127.0.0.1"))

    async def end(self) -> None:
        await asyncio.gather(*(child.kill() for child in (self._server, self._etcd, *self._others) if child))

    # Details ------------------------------------------------------------------------------------------------------

    def _child(self, name: str, *arguments: str) -> Child:
        return Child(
            name,
            # Without `nice`, it would delay packets of the Nodes while it starts on a machine with two cores.
            [program("nice"), "-n", "10", str(path_of(name)), *arguments],
            namespace=self.namespace,
            folder=self.folder,
            log=self.folder / f"{name}.log",
        )

    def _server_arguments(self) -> Sequence[str]:
        return (
            *(f"--etcd-servers={ETCD}", f"--secure-port={PORT}", "--bind-address=::"),
            f"--advertise-address={self._addresses[0]}",
            f"--tls-cert-file={self.folder}/server.crt",
            f"--tls-private-key-file={self.folder}/server.key",
            f"--client-ca-file={self.folder}/ca.crt",
            f"--token-auth-file={self.folder}/tokens.csv",
            f"--service-account-key-file={self.folder}/accounts.pub",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            *self._extent.server,
            "--allow-privileged=true",
            "--profiling=false",
        )

    def _write_credentials(self) -> None:
        authority = certificates.authority(self.folder)
        names = [
            *(f"IP:{address}" for address in self._addresses),
            "IP:127.0.0.1",
            "IP:10.96.0.1",  # the ClusterIP of Service kubernetes: the first address of the Service network
            "DNS:localhost",
            *(f"DNS:kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
        ]
        certificates.issue(authority, self.folder, "server", alternatives=names)
        certificates.signing_keys(self.folder, "accounts")
        users = [f'{name},{name},{name},"{group}"' for name, group in self._users.items()]
        (self.folder / "tokens.csv").write_text("\n".join(users) + "\n")
        ca = base64.b64encode(authority.certificate.read_bytes()).decode()
        for user in self._users:
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "lab", "cluster": {"server": self.url, "certificate-authority-data": ca}}],
                "users": [{"name": user, "user": {"token": user}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
                "current-context": "lab",
            }
            self.kubeconfig(user).write_text(yaml.safe_dump(content))

    async def _answers(self, server: Child) -> None:
        async with self.connection() as connection:

            async def missing() -> str | None:
                try:
                    await connection.request("GET", "/readyz")
                except (Unreachable, RequestRefused) as error:
                    return str(error)
                return None

            await server.until(missing, "does not answer", SECONDS_TO_START, SECONDS_BETWEEN_POLLS)


_KUBECONFIG_OPTIONS = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")


async def apply(connection: APIConnection, document: dict[str, object], path: str) -> bytes:
    """Server-side apply: creates or changes the object, and returns it as it is now."""
    parameters = {"fieldManager": "windlass-lab", "force": "true"}
    body = msgspec.json.encode(document)
    return await connection.request("PATCH", path, parameters, body, "application/apply-patch+yaml")
