"""Removes secrets from text: tokens, passwords, keys, credentials in URLs. Pure.

It is the second line of defence: files with secrets are not read at all.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
# Each with a lower-case word that every match contains: most of the lines contain none, and are skipped quickly.
_SECRETS = tuple(
    (hint, re.compile(pattern, re.VERBOSE | re.IGNORECASE), replacement)
    for hint, pattern, replacement in (
        ("eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", REDACTED),  # a JSON web token
        ("bearer", r"(bearer\s+)[\w.~+/=-]{8,}", rf"\1{REDACTED}"),
        ("basic", r"(basic\s+)[\w.~+/=-]{8,}", rf"\1{REDACTED}"),
        ("://", r"(://)[^\s/@\"']+@", rf"\1{REDACTED}@"),  # the user of a URL
        *(
            # The end of a name and its value, as in JSON, YAML and command lines.
            (name, rf"""({name}["']?\s*[:=]\s*)(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,}}\]]+)""", rf"\1{REDACTED}")
            for name in ("password", "passwd", "passphrase", "secret", "token", "credential", "psk", "-data")
        ),
        ("key", r"""((?:private|api|access)[-_]?key["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,}\]]+)""", rf"\1{REDACTED}"),
    )
)


def redacted(text: str) -> str:
    return "".join(map(_redacted_line, _PEM.sub(rf"-----BEGIN \1-----{REDACTED}", text).splitlines(keepends=True)))


def _redacted_line(line: str) -> str:
    lower = line.lower()
    for hint, pattern, replacement in _SECRETS:
        if hint in lower:
            line = pattern.sub(replacement, line)
    return line
