"""Finds objects that manifests define several times, each time differently: only the last definition counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windlass.lab.scenarios.expansions import Document


def redefinitions(objects: Iterable[tuple[str, Document]]) -> Iterator[str]:
    """A sentence for each of them; the objects come with kind and key, as `Pod shop/web`."""
    found: dict[str, list[Document]] = {}
    for name, document in objects:
        found.setdefault(name, []).append(document)
    for name, definitions in found.items():
        if any(one != definitions[0] for one in definitions):
            yield f"{name} is defined {len(definitions)} times; the last definition counts"
