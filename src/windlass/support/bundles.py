"""Collects the items of a support bundle, each limited in time and size, and packs them into one redacted file."""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.support.items import BundleItem
from windlass.support.redactions import redacted
from windlass.support.sources import LARGEST, Unavailable

SECONDS = 10.0  # for one item
AT_ONCE = 4  # items in parallel: few, because the Node may be overloaded

NEVER = (
    "tokens, passwords, certificates and keys",
    "the kubeconfig and the service account of the agent",
    "environment, annotations, volumes and commands of Pods; Secrets; ConfigMaps",
    "the contents of CNI configurations",
    "single connections and their clients' addresses; packets",
)


@dataclass(frozen=True, slots=True)
class Collected:
    item: BundleItem
    content: bytes = b""
    missing: str = ""  # why the item could not be collected; empty if it was


async def collect(items: Sequence[BundleItem]) -> list[Collected]:
    """Collect all items, independently of one another."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: BundleItem) -> Collected:
        async with slots:
            return await _collected(item)

    return list(await asyncio.gather(*map(one, items)))


async def _collected(item: BundleItem) -> Collected:
    try:
        async with asyncio.timeout(SECONDS):
            content = await item.collect()
    except Unavailable as error:
        return Collected(item, missing=redacted(str(error)))
    except TimeoutError:
        return Collected(item, missing=f"it took more than {SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 - one broken item must not prevent the others
        return Collected(item, missing=redacted(f"unexpected: {error!r}"))
    return Collected(item, await asyncio.to_thread(_bounded, content))


def _bounded(content: bytes) -> bytes:
    text = redacted(content[:LARGEST].decode(errors="replace"))
    if len(content) > LARGEST:
        text += f"\n(truncated: there are more than {LARGEST >> 20} MiB)\n"
    return text.encode()


def packed(name: str, collected: Sequence[Collected], now: float) -> bytes:
    """A tar.gz with one directory of this name."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=int(now)) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        present = [(one.item.name, one.content) for one in collected if not one.missing]
        for path, content in (("README.txt", readme(collected, now).encode()), *present):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def readme(collected: Sequence[Collected], now: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return "\n".join([f"Support bundle of a Windlass Node, {when}", "", *summary(collected), ""])


def summary(collected: Sequence[Collected]) -> list[str]:
    """What the bundle contains, what is missing and why, and what is never collected."""
    there = [one for one in collected if not one.missing]
    missing = [one for one in collected if one.missing]
    width = max(len(one.item.name) for one in collected)
    lines = ["Collected:", *(f"  {one.item.name:<{width}}  {one.item.what}" for one in there)]
    if missing:
        lines += ["", "Could not be collected:"]
        lines += [f"  {one.item.name:<{width}}  {one.missing}" for one in missing]
    return [*lines, "", "Never collected, and removed where it appears:", *(f"  {what}" for what in NEVER)]
