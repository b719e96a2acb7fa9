"""Importing this adds tables to stages of the pipeline; it must come before the import of anything that has flows."""

from __future__ import annotations

from windlass.pipeline.declarations import ONWARD, Layout, Miss, Table

# First, last, or between the tables of their stage.
NEW_TABLES = {
    9: "spoof guard",
    24: "conntrack",
    28: "conntrack",
    40: "service",
    46: "service",
    69: "route",
    71: "route",
    74: "egress policy",
    80: "egress policy",
    89: "ingress policy",
    94: "ingress policy",
    103: "policy denials",
    106: "commit",
    109: "output",
}
complete = Layout.complete


def complete_with_more_tables(layout: Layout) -> Layout:
    stages = {stage.name: stage for stage in layout.stages}
    for number, stage in NEW_TABLES.items():
        miss = Miss("every packet: on to the next table", leads_to=ONWARD)
        layout.tables[number] = Table(stages[stage], number, f"New{number}", "New?", miss, (), (), (), (), aside=False)
    layout.tables = dict(sorted(layout.tables.items()))
    return complete(layout)


Layout.complete = complete_with_more_tables  # type: ignore[method-assign]
