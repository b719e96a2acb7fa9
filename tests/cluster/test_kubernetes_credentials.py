"""Credentials for the API server: kubeconfig, service account, TLS, and an error sentence for each mistake."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from api_servers import NODES, StandIn

from windlass.cluster.kubernetes.connections import APIConnection, Unreachable
from windlass.cluster.kubernetes.credentials import Access, NoAccess, from_kubeconfig, in_cluster
from windlass.lab.control import certificates
from windlass.lab.control.certificates import Certificate

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def kubeconfig(folder: Path, *, cluster: object = None, user: object = None, **fields: object) -> Path:
    file = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(content | fields))
    return file


def account(folder: Path) -> Path:
    (folder / "token").write_text("projected\n")
    (folder / "ca.crt").write_text("PEM")
    return folder


# Kubeconfig -------------------------------------------------------------------------------------------------------


def test_a_token(tmp_path):
    access = from_kubeconfig(kubeconfig(tmp_path))
    assert (access.server, access.token) == ("https://10.0.0.1:6443", "secret")
    assert access.identity == f"the token of user u in {tmp_path}/kubeconfig"


def test_relative_files_are_read_for_each_request(tmp_path):
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("PEM")
    file = kubeconfig(
        tmp_path,
        cluster={"server": "https://server/", "certificate-authority": "ca.crt", "tls-server-name": "kubernetes"},
        user={"tokenFile": "token"},
    )
    access = from_kubeconfig(file)
    assert (access.server, access.authority, access.token) == ("https://server", "PEM", "first")
    assert access.server_name == "kubernetes"
    (tmp_path / "token").write_text("second")
    assert from_kubeconfig(file).token == (tmp_path / "token").read_text()


def test_data_in_the_kubeconfig(tmp_path):
    data = b64encode(b"PEM").decode()
    access = from_kubeconfig(
        kubeconfig(
            tmp_path,
            cluster={"server": "https://server", "certificate-authority-data": data},
            user={"client-certificate-data": data, "client-key-data": data},
        )
    )
    assert (access.authority, access.certificate, access.key) == ("PEM", "PEM", "PEM")
    assert access.identity == f"the client certificate of user u in {tmp_path}/kubeconfig"


def test_the_configuration_overrides_the_address_of_the_server(tmp_path):
    access = from_kubeconfig(kubeconfig(tmp_path), "192.0.2.1:6443")
    assert access.server == "https://192.0.2.1:6443"
    assert "apiServer" in access.named_by


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"current-context": "y"}, "current-context names 'y', which is not among its contexts (known: x)"),
        ({"clusters": [{"name": "c"}]}, "not a kubeconfig: clusters[0]: object missing required field `cluster`"),
        ({"clusters": None}, "context x names 'c', which is not among its clusters (known: none)"),
        ({"user": {"exec": {"command": "aws"}}}, "user u has neither a token nor a client certificate"),
        ({"user": {"tokenFile": "gone"}}, "gone: cannot be read: No such file or directory"),
        ({"user": {"client-certificate-data": "!"}}, "client-certificate-data is not PEM in base64"),
        ({"cluster": {"server": "ftp://server"}}, "'ftp://server' is not an address such as"),
        ({"cluster": {"server": "https://server:port"}}, "'https://server:port' is not an address such as"),
        ({"cluster": {"server": "https://s", "proxy-url": "http://p"}}, "`proxy-url` is not supported"),
    ],
)
def test_unusable_entries(tmp_path, content, sentence):
    with pytest.raises(NoAccess) as error:
        from_kubeconfig(kubeconfig(tmp_path, **content))
    assert sentence in str(error.value)
    assert str(tmp_path / "kubeconfig") in str(error.value)


@pytest.mark.parametrize("content", ["{", "- a", "7", ""])
def test_a_file_that_is_not_a_kubeconfig(tmp_path, content):
    file = tmp_path / "kubeconfig"
    file.write_text(content)
    with pytest.raises(NoAccess, match=f"^{file}: "):
        from_kubeconfig(file)


def test_a_missing_kubeconfig(tmp_path):
    with pytest.raises(
        NoAccess, match="cannot be read: No such file or directory; check `kubeconfig` in the configuration"
    ):
        from_kubeconfig(tmp_path / "kubeconfig")


# In a cluster -----------------------------------------------------------------------------------------------------


def test_the_service_account_of_a_pod(tmp_path):
    access = in_cluster("", account(tmp_path), ENVIRONMENT)
    assert (access.server, access.token, access.authority) == ("https://10.96.0.1:443", "projected", "PEM")
    assert access.host == "10.96.0.1"
    assert in_cluster("", tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"


def test_the_configuration_overrides_the_address_in_a_pod(tmp_path):
    access = in_cluster("https://192.0.2.1:6443", account(tmp_path), ENVIRONMENT)
    assert access.server == "https://192.0.2.1:6443"


def test_outside_of_a_pod(tmp_path):
    with pytest.raises(NoAccess, match="set `apiServer`, or `kubeconfig` outside of a cluster"):
        in_cluster("", tmp_path, {})
    with pytest.raises(NoAccess, match=r"ca.crt: cannot be read: .*check the service account"):
        in_cluster("https://192.0.2.1", tmp_path, {})


# TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path) -> Certificate:
    return certificates.authority(tmp_path)


@asynccontextmanager
async def secure(own: Certificate, clients_of: Certificate | None = None) -> AsyncIterator[StandIn]:
    server = StandIn()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*own)
    if clients_of:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(clients_of.certificate)
    await server.start(tls)
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: StandIn, by: Certificate, **access: str) -> bytes:
    known = Access(server.address, "a test", "a token", authority=by.certificate.read_text(), **access)
    async with APIConnection(lambda: known) as connection:
        return await connection.request("GET", NODES)


async def test_a_server_with_a_good_certificate(tmp_path, authority):
    own = certificates.issue(authority, tmp_path, "server", alternatives=["IP:127.0.0.1"])
    async with secure(own) as server:
        assert b"NodeList" in await ask(server, authority)


async def test_a_client_certificate(tmp_path, authority):
    own = certificates.issue(authority, tmp_path, "server", alternatives=["IP:127.0.0.1"])
    client = certificates.issue(authority, tmp_path, "client")
    async with secure(own, clients_of=authority) as server:
        certificate = {"certificate": client.certificate.read_text(), "key": client.key.read_text()}
        assert b"NodeList" in await ask(server, authority, **certificate)
        with pytest.raises(NoAccess, match="are not PEM, or do not match"):
            await ask(server, authority, certificate=certificate["certificate"], key=own.key.read_text())


@pytest.mark.parametrize(
    ("alternative", "days", "sentence"),
    [
        ("IP:127.0.0.1", -1, "its certificate is not accepted: certificate has expired; renew it"),
        ("IP:192.0.2.1", 30, "the certificate must name that address; check a test"),
    ],
)
async def test_a_server_with_a_bad_certificate(tmp_path, authority, alternative, days, sentence):
    own = certificates.issue(authority, tmp_path, "server", alternatives=[alternative], days=days)
    async with secure(own) as server:
        with pytest.raises(Unreachable) as error:
            await ask(server, authority)
    assert str(error.value).startswith(f"{server.address}: its certificate is not accepted: ")
    assert sentence in str(error.value)


async def test_another_authority(tmp_path, authority):
    own = certificates.issue(authority, tmp_path, "server", alternatives=["IP:127.0.0.1"])
    (tmp_path / "other").mkdir()
    async with secure(own) as server:
        with pytest.raises(Unreachable, match="it is not signed by the certificate authority that belongs to a token"):
            await ask(server, certificates.authority(tmp_path / "other", "other"))


async def test_a_server_without_tls(authority):
    server = StandIn()
    await server.start()
    server.address = server.address.replace("http:", "https:")
    with pytest.raises(Unreachable, match=r"the TLS handshake failed: .*is an API server there"):
        await ask(server, authority)
    await server.stop()
