"""Agents on Linux in processes of their own, for benchmarks."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ParamSpec, TypeVar

from windlass.agent.agents import Agent
from windlass.bench import bare_agents
from windlass.bench.bare_agents import Events
from windlass.host.linux.hosts import LinuxHost
from windlass.nodes.config import Config

P = ParamSpec("P")
R = TypeVar("R")


async def in_new_process(work: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
    """Run `work` in a new process, which ends afterwards: nothing else is in its memory."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as processes:
        return await asyncio.get_running_loop().run_in_executor(processes, work, *arguments)


def running(config: Config, events: Events) -> AbstractAsyncContextManager[tuple[Agent, float]]:
    """An agent whose Node is ready, and the seconds that it took."""
    return bare_agents.running(config, LinuxHost(Path(config.state_directory)), events)


def rss() -> float:
    """MB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
