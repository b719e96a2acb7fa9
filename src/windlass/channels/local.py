"""The streams of this operating system. A path names the server on both: Windows derives the name of a pipe from it.

connect      opens a stream in an event loop
attach       the same for a protocol of asyncio, which gets the bytes as they arrive
dial         opens a stream without an event loop, with a time limit for each step
listening    accepts streams, from root only (on Windows: from administrators and SYSTEM of this machine)
is_served    whether a process listens

All of them raise OSError, and `listening` raises ServedError if another process listens there.
"""

from __future__ import annotations

import sys

from windlass.channels.streams import ServedError

if sys.platform == "win32":
    from windlass.channels.named_pipes import address, attach, connect, dial, is_served, listening
else:
    from windlass.channels.unix_sockets import address, attach, connect, dial, is_served, listening

__all__ = ["ServedError", "address", "attach", "connect", "dial", "is_served", "listening"]
