"""Collects the parts of a bundle, each bounded in time and size, and packs them into one redacted file."""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.support.parts import Part
from windlass.support.redactions import redacted
from windlass.support.sources import LARGEST, Unavailable

SECONDS = 10.0  # for one part
AT_ONCE = 4  # parts: a Node in trouble has better things to do

NEVER = (
    "tokens, passwords, certificates and keys",
    "the kubeconfig and the service account of the agent",
    "environment, annotations, volumes and commands of Pods; Secrets; ConfigMaps",
    "the contents of CNI configurations",
    "single connections and their clients' addresses; packets",
)


@dataclass(frozen=True, slots=True)
class Collected:
    part: Part
    content: bytes = b""
    missing: str = ""  # why it could not be collected


async def collect(parts: Sequence[Part]) -> list[Collected]:
    """All of them, whatever happens to each."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(part: Part) -> Collected:
        async with turn:
            return await _collected(part)

    return list(await asyncio.gather(*map(one, parts)))


async def _collected(part: Part) -> Collected:
    try:
        async with asyncio.timeout(SECONDS):
            content = await part.collect()
    except Unavailable as error:
        return Collected(part, missing=redacted(str(error)))
    except TimeoutError:
        return Collected(part, missing=f"it took more than {SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 - a bundle is made when things are broken: one part must not cost the rest
        return Collected(part, missing=redacted(f"unexpected: {error!r}"))
    return Collected(part, await asyncio.to_thread(_bounded, content))


def _bounded(content: bytes) -> bytes:
    text = redacted(content[:LARGEST].decode(errors="replace"))
    if len(content) > LARGEST:
        text += f"\n(cut off here: there is more than {LARGEST >> 20} MiB of it)\n"
    return text.encode()


def packed(name: str, collected: Sequence[Collected], now: float) -> bytes:
    """A tar.gz with one folder of this name."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=int(now)) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        present = [(one.part.name, one.content) for one in collected if not one.missing]
        for path, content in (("README.txt", readme(collected, now).encode()), *present):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def readme(collected: Sequence[Collected], now: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return "\n".join([f"Support bundle of a Windlass Node, {when}", "", *summary(collected), ""])


def summary(collected: Sequence[Collected]) -> list[str]:
    """What is in the bundle, what is not and why, and what never is."""
    there = [one for one in collected if not one.missing]
    missing = [one for one in collected if one.missing]
    width = max(len(one.part.name) for one in collected)
    lines = ["Collected:", *(f"  {one.part.name:<{width}}  {one.part.what}" for one in there)]
    if missing:
        lines += ["", "Could not be collected:"]
        lines += [f"  {one.part.name:<{width}}  {one.missing}" for one in missing]
    return [*lines, "", "Never collected, and taken out where it appears:", *(f"  {what}" for what in NEVER)]
