"""Answers of ovs-vswitchd by its control socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from stream_servers import serving_streams
from windlass.switch.controls import ask

LONG = "a {brace} in the text\n" * 100_000


async def test_a_long_answer_is_read_to_its_end_although_parts_of_it_end_like_a_whole_one(tmp_path: Path):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        content = msgspec.json.encode({"id": 0, "result": LONG, "error": None})
        first = content.index(b"}") + 1
        for part in (content[:first], content[first:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"\n")
        await writer.drain()
        await reader.read()  # the connection stays open
        writer.close()

    async with serving_streams(tmp_path / "ctl", answer):
        assert await ask(str(tmp_path / "ctl"), "dpctl/dump-conntrack") == LONG
