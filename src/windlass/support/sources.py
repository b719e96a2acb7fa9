"""The sources of a bundle's items: commands, files and ovs-vswitchd. `bundles` limits their size.

A source that cannot be read raises `Unavailable`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from windlass.switch import controls
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

LARGEST = 10 << 20  # bytes of one item
_CHUNK = 1 << 16
_PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"  # in addition to PATH, which may lack sbin


class Unavailable(Exception):
    """The item cannot be collected. The message says why."""


async def command(*arguments: str, called: str = "") -> bytes:
    """The output of a command, with its error at the end if it fails. `called`: its name in error messages."""
    program = shutil.which(arguments[0], path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if program is None:
        raise Unavailable(f"this machine has no program {arguments[0]}")
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments[1:],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )
    reading_errors = asyncio.ensure_future(_read(process.stderr))
    try:
        output = await _read(process.stdout)
        if len(output) > LARGEST:
            process.kill()  # the output is longer than an item may be
        errors = await reading_errors
        await process.communicate()  # `wait` would hang if more output is in the pipe than a stream reads ahead
        status = process.returncode or 0
    finally:
        reading_errors.cancel()
        await asyncio.wait([reading_errors])
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
    first_error = errors.decode(errors="replace").strip().partition("\n")[0]
    if not output and status:
        raise Unavailable(f"`{called or ' '.join(arguments)}` failed: {first_error or f'exit status {status}'}")
    return output + (f"\n(exit status {status}: {first_error})\n".encode() if status > 0 else b"")


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    content = bytearray()
    while stream and len(content) <= LARGEST and (chunk := await stream.read(_CHUNK)):
        content += chunk
    return bytes(content)


async def commands(*each: Sequence[str]) -> bytes:
    """The outputs of all commands in one text, each under its own heading. Unavailable if all of them fail."""
    sections: list[bytes] = []
    failures: list[str] = []
    for arguments in each:
        try:
            sections.append(_section(" ".join(arguments), await command(*arguments)))
        except Unavailable as error:
            failures.append(str(error))
            sections.append(_section(" ".join(arguments), f"{error}\n".encode()))
    if len(failures) == len(each):
        raise Unavailable("; ".join(dict.fromkeys(failures)))
    return b"\n".join(sections)


async def file(path: Path, last: int = LARGEST) -> bytes:
    """The last bytes of the file."""
    try:
        return await asyncio.to_thread(_end, path, last)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None


def _end(path: Path, last: int) -> bytes:
    with path.open("rb") as opened:
        with suppress(OSError):  # files of the kernel may not support it
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - last))
        return opened.read(last)


async def files(*paths: Path, last: int = _CHUNK) -> bytes:
    """The end of each file, under its name, without files that do not exist."""
    sections = []
    for path in paths:
        with suppress(Unavailable):
            sections.append(_section(str(path), await file(path, last)))
    if not sections:
        raise Unavailable(f"none of {', '.join(map(str, paths))} can be read" if paths else "there are no such files")
    return b"\n".join(sections)


async def control(run_directory: str, *each: Sequence[str]) -> bytes:
    """The answers of ovs-vswitchd to these `ovs-appctl` commands."""
    sections = []
    try:
        socket = controls.control_socket(run_directory)
        for arguments in each:
            try:
                answer = await controls.ask(socket, *arguments)
            except SwitchRefusedError as error:
                answer = f"{error}\n"
            sections.append(_section(" ".join(arguments), answer.encode()))
    except SwitchUnreachableError as error:
        raise Unavailable(str(error)) from None
    return b"\n".join(sections)


def _section(title: str, content: bytes) -> bytes:
    return f"### {title}\n".encode() + content
