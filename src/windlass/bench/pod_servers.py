"""A simulated API server that knows only Pods: it sends all of them, and then changes. A program of its own.

    python -m windlass.bench.pod_servers PODS CHANGES

It prints its port. A client that watches Pods gets all of them (sendInitialEvents), and changes when it has asked for
anything else.
"""

from __future__ import annotations

import asyncio
import sys

from windlass.bench import pod_documents

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_LISTED = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
)
_TOGETHER = 40  # events in a chunk while it lists


class PodServer:
    def __init__(self, pods: int, changes: int) -> None:
        self._pods = pods
        # Encoded beforehand: what is measured beside this process is the client.
        self._events = [_event("ADDED", number, 1) for number in range(pods)]
        self._changes = [_event("MODIFIED", number * 7919 % pods, 2 + number, 1) for number in range(changes)]
        self._go = asyncio.Event()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"watch=true" not in request:
            self._go.set()
            writer.write(_EMPTY)
            await writer.drain()
            return
        writer.write(_HEAD)
        for first in range(0, self._pods, _TOGETHER):
            await _send(writer, b"".join(self._events[first : first + _TOGETHER]))
        await _send(writer, _LISTED)
        await self._go.wait()
        for change in self._changes:
            await _send(writer, change)
        await reader.read()  # until the client goes


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(content), content))
    await writer.drain()


def _event(kind: str, number: int, version: int, times: int = 0) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), pod_documents.sent(number, version, times))


if __name__ == "__main__":
    asyncio.run(PodServer(int(sys.argv[1]), int(sys.argv[2])).serve())
