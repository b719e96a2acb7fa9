"""Certificates for the API servers of the lab, made with openssl: an authority, and certificates that it signs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from windlass.lab.sandbox.processes import output_of


class Certificate(NamedTuple):
    certificate: Path
    key: Path


def authority(folder: Path, name: str = "windlass-lab") -> Certificate:
    key = _key(folder, "ca")
    made = Certificate(folder / "ca.crt", key)
    output_of(
        "openssl", "req", "-x509", "-new", "-key", str(key), "-days", "30", "-subj", f"/CN={name}", "-out", str(made[0])
    )
    return made


def issue(
    by: Certificate, folder: Path, name: str, *, subject: str = "", alternatives: Sequence[str] = (), days: int = 30
) -> Certificate:
    """`alternatives` in the form of openssl: `IP:10.0.0.1`, `DNS:localhost`. Negative `days` give an expired one."""
    key = _key(folder, name)
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    made = Certificate(folder / f"{name}.crt", key)
    lines = ["extendedKeyUsage=serverAuth,clientAuth", "authorityKeyIdentifier=keyid"]
    extensions.write_text("\n".join([*lines, *([f"subjectAltName={','.join(alternatives)}"] if alternatives else [])]))
    output_of("openssl", "req", "-new", "-key", str(key), "-subj", subject or f"/CN={name}", "-out", str(request))
    signed_by = ("-CA", str(by.certificate), "-CAkey", str(by.key), "-CAcreateserial")
    output_of(
        "openssl",
        *("x509", "-req", "-in", str(request), *signed_by, "-days", str(days)),
        *("-extfile", str(extensions), "-out", str(made.certificate)),
    )
    return made


def signing_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """The private and the public key that sign and verify the tokens of service accounts."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    output_of("openssl", "genrsa", "-out", str(private), "2048")
    output_of("openssl", "rsa", "-in", str(private), "-pubout", "-out", str(public))
    return private, public


def _key(folder: Path, name: str) -> Path:
    key = folder / f"{name}.key"
    output_of("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    return key
