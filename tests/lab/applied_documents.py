"""The documents of a cluster after those of a step were applied, as plain dictionaries."""

from __future__ import annotations

from windlass.lab.fuzz.documents import identity


def applied(before, step):
    """Without probes and actions."""
    after = dict(before)
    for document in _opened(step):
        kind, key = identity(document)
        if kind == "Delete":
            del after[document["spec"]["kind"], document["spec"]["name"]]
        elif kind not in {"Probe", "Action"}:
            after[kind, key] = document
    return after


def _opened(documents):
    """Replaces each List by its items."""
    for document in documents:
        if document["kind"] == "List":
            yield from _opened(document["items"])
        else:
            yield document
