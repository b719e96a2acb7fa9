"""One real switch for all tests of the wire form; each test starts with an empty bridge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

import pytest
from channels import Bridge, Channel

from switches import running_switch

T = TypeVar("T")


@pytest.fixture(scope="session")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with _event_loop_in_a_thread() as do:
        context = running_switch(tmp_path_factory.mktemp("ovs"))
        switch = do(context.__aenter__())
        try:
            do(switch.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev"))
            do(switch.vsctl("set-fail-mode", "br-int", "secure"))
            yield Bridge(switch.management("br-int"), switch, do)
        finally:
            do(context.__aexit__(None, None, None))


@pytest.fixture
def channel(bridge: Bridge) -> Iterator[Channel]:
    """A connection to the bridge, which is empty."""
    channel = Channel(bridge.path)
    channel.empty()
    yield channel
    channel.close()


@pytest.fixture
def stranger(bridge: Bridge) -> Iterator[Channel]:
    """The connection of another controller to the bridge."""
    channel = Channel(bridge.path)
    yield channel
    channel.close()


@contextmanager
def _event_loop_in_a_thread() -> Iterator[Callable[[Coroutine[None, None, T]], T]]:
    """The fixture of the switch is a coroutine, but property tests are not: so the switch runs in a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
