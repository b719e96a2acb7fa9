"""A program for `test_stages`: what the flows of some Nodes do in a pipeline with more tables in its stages.

It prints what they do that their tables do not declare, and to which tables the flows of each table lead.
"""

from __future__ import annotations

import sys

import more_tables  # noqa: F401 - before what has flows

# isort: split
import msgspec
from node_states import BOTH, over_sctp, serving_cluster, with_policies
from table_statements import Verb, uses, violations

from windlass.model.nodes import TrafficMode
from windlass.pipeline.layout import LAYOUT
from windlass.program import program


def main() -> None:
    next_tables: dict[int, set[int]] = {}
    wrong: list[str] = []
    for mode in TrafficMode:
        served = with_policies(serving_cluster(mode, *BOTH))
        for state in (served, over_sctp(served)):
            wrong += violations(LAYOUT, program(state))
            for part in program(state).values():
                groups = {group.identity: group for group in part.groups}
                for use in (use for flow in part.flows for use in uses(flow, groups)):
                    if use.verb is Verb.LEADS_TO and isinstance(use.what, int):
                        next_tables.setdefault(use.table, set()).add(use.what)
    sys.stdout.buffer.write(msgspec.json.encode({"wrong": wrong, "next_tables": next_tables}))


if __name__ == "__main__":
    main()
