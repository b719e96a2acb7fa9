"""Answers of ovs-vswitchd by its control socket."""

from __future__ import annotations

import time

import msgspec

from windlass.switch.controls import _answer


class Chunks:
    """A stream that delivers a long answer in small chunks."""

    def __init__(self, content: bytes, size: int) -> None:
        self._chunks = (content[start : start + size] for start in range(0, len(content), size))

    async def read(self, _most: int) -> bytes:
        return next(self._chunks, b"")


async def test_the_time_to_read_an_answer_grows_with_its_length_only():
    result = "tcp,orig=(src=172.16.1.2)\n" * 800_000
    content = msgspec.json.encode({"id": 0, "result": result, "error": None})
    began = time.process_time()
    answer = await _answer(Chunks(content, 1 << 10))
    assert time.process_time() - began < 2, "a copy of all that was received for each chunk takes longer"
    assert answer.result == result
