"""All flows of a Program, each with its owner."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.openflow.flows import Flow
from windlass.program import Owner, Program


def flows_of(program: Program) -> Iterator[tuple[Owner, Flow]]:
    for owner, owned in program.items():
        for flow in owned.flows:
            yield owner, flow
