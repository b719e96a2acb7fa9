"""Requests to the API server over aiohttp: TLS, credentials, and a sentence for every failure.

Callers decide what to request, and when to retry.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import aiohttp

from windlass import os_errors
from windlass.cluster.kubernetes.credentials import Access, NoAccess, Reader
from windlass.cluster.kubernetes.decoding import status

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
SILENT_SECONDS = 150.0  # without data from a watch: a working server sends a bookmark every minute
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds between attempts
JSON = "application/json"
_CHUNK = 2**18  # bytes to buffer: decoding them blocks the event loop for a few milliseconds

# Detects within half a minute that the machine or the network of the server has failed.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


AddressInfo = tuple[int, int, int, str, tuple[object, ...]]
SocketFactory = Callable[[AddressInfo], socket.socket]


class Unreachable(Exception):
    """There is no usable answer. The message says what failed, where, and what to check."""


class RequestRefused(Exception):
    """The server refused the request. The message says why, and what to check."""

    def __init__(self, sentence: str, code: int, retry_after: float = 0.0) -> None:
        super().__init__(sentence)
        self.code = code
        self.retry_after = retry_after  # seconds that the server asks to wait


def pause_after(failures: int) -> float:
    """Exponential backoff with jitter: all agents of a cluster lose their server at the same moment."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 20))
    return longest * random.uniform(0.5, 1.0) if failures else random.uniform(0.0, FIRST_PAUSE)  # noqa: S311


def watched_socket(address: AddressInfo) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):  # Wine knows the names only
                made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class APIConnection:
    """A context manager. Credentials are read again for each request."""

    def __init__(self, access: Reader, socket_factory: SocketFactory = watched_socket) -> None:
        """The socket factory decides from which network namespace the server is reached."""
        self._access = access
        self._socket_factory = socket_factory
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[object, ssl.SSLContext] | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket_factory),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS),
            headers={"User-Agent": "windlass"},
            read_bufsize=_CHUNK,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """The whole answer. Raises RequestRefused or Unreachable."""
        async with self._answer(method, path, parameters or {}, body, content_type, accept) as (answer, access):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await answer.read()
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(_unreachable(error, access)) from None

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer in chunks until the server ends it. Raises Unreachable if the connection breaks."""
        async with self._answer("GET", path, parameters, None, "", accept) as (answer, access):
            if not answer.content_type.startswith(JSON):
                raise Unreachable(
                    f"{access.server} does not answer like an API server ({answer.content_type}); "
                    f"check {access.named_by}"
                )
            yield _chunks(answer, access)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, parameters: Mapping[str, str], body: bytes | None, content_type: str, accept: str
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Access]]:
        access = self._access()
        headers = {"Accept": accept}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        if body is not None:
            headers["Content-Type"] = content_type
        if self._session is None:
            raise RuntimeError("an APIConnection is used inside its `async with`")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._session.request(
                    method,
                    access.server + path,
                    params=parameters,
                    data=body,
                    headers=headers,
                    ssl=self._context(access),
                    server_hostname=access.server_name or None,
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise Unreachable(_unreachable(error, access)) from None
        async with answer:
            if not 200 <= answer.status < 300:
                raise await _refusal(answer, access, f"{method.lower()} {path.rpartition('/')[2]}")
            yield answer, access

    def _context(self, access: Access) -> ssl.SSLContext:
        """The same object until the certificates change, so that connections can be reused."""
        certificates = access.authority, access.certificate, access.key, access.is_unverified
        if self._tls is None or self._tls[0] != certificates:
            self._tls = certificates, _tls_context(access)
        return self._tls[1]


async def _chunks(answer: aiohttp.ClientResponse, access: Access) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(_unreachable(error, access)) from None


def _tls_context(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.is_unverified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not access.authority:
        context.load_default_certs()
    else:  # trust this authority only, not those of the system
        try:
            context.load_verify_locations(cadata=access.authority)
        except (ssl.SSLError, ValueError):
            raise NoAccess(
                f"the certificate authority for {access.server} is not PEM; check {access.identity}"
            ) from None
    if access.certificate:
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads client certificates from files only
            files = [Path(folder, name) for name in ("certificate", "key")]
            for file, content in zip(files, (access.certificate, access.key), strict=True):
                file.touch(mode=0o600)
                file.write_text(content)
            try:
                context.load_cert_chain(str(files[0]), str(files[1]))
            except (ssl.SSLError, OSError):
                raise NoAccess(f"{access.identity}: certificate and key are not PEM, or do not match") from None
    return context


def _unreachable(error: Exception, access: Access) -> str:
    server, named_by = access.server, access.named_by
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        return f"{server}: its certificate is not accepted: {reason}; {_certificate_hint(reason, access)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"{server}: there is no host with that name; check {named_by}"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"{server}: the TLS handshake failed: {_reason(error)}; is an API server there? Check {named_by}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{server}: {_reason(error)}; does the API server run there? Check {named_by}"
    if isinstance(error, TimeoutError):
        return f"{server}: no answer; does the API server run there, and can this machine reach it? Check {named_by}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{server}: the answer is not HTTP; check {named_by}"
    return f"{server}: the connection broke: {_reason(error)}"


def _certificate_hint(reason: str, access: Access) -> str:
    if "expired" in reason or "not yet valid" in reason:
        return "renew it, or correct the clock of this machine"
    if "mismatch" in reason or "not valid for" in reason:
        return f"the certificate must name that address; check {access.named_by}"
    return f"it is not signed by the certificate authority that belongs to {access.identity}"


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or str(cause)).replace("_", " ").lower()
    if isinstance(cause, ConnectionResetError):  # in a handshake, asyncio gives no more detail
        return os.strerror(errno.ECONNRESET)
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0:  # other errors have only a text
        return os_errors.reason(cause)
    return (str(cause) or type(cause).__name__).partition("\n")[0]


async def _refusal(answer: aiohttp.ClientResponse, access: Access, what: str) -> RequestRefused:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            refusal = status(await answer.read())
    except (aiohttp.ClientError, OSError):
        refusal = status(b"")
    message = refusal.message or answer.reason or "without a reason"
    retry_after = answer.headers.get("Retry-After", "")
    match answer.status:
        case 401:
            sentence = f"{access.server} does not accept {access.identity} (401); is it expired, or of another cluster?"
        case 403:
            sentence = f"{access.server} forbids it (403): {message}; the ClusterRole of Windlass must allow it"
        case _:
            sentence = f"{access.server}: {what}: {message} ({answer.status})"
    return RequestRefused(sentence, answer.status, float(retry_after) if retry_after.isdecimal() else 0.0)
