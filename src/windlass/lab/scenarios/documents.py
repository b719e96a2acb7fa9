"""Reads the objects in a YAML or JSON text as they are written, with the items of lists, or says why it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec
import yaml

_MERGE = "tag:yaml.org,2002:merge"


def documents_in(
    content: bytes, name: str, problems: list[str], warnings: list[str] | None = None
) -> Iterator[Mapping[str, object]]:
    """The objects as they are written; `name` is for problems.

    A key that occurs twice in a mapping is a problem. With `warnings` it is a warning, and its last value counts.
    """
    duplicates: list[str] = []
    try:
        for document in _parsed(content, duplicates):
            if duplicates and warnings is None:
                problems += [f"{name}: {sentence}" for sentence in duplicates[:1]]
                return
            yield from _opened(document, name, problems)
        if warnings is not None:
            warnings += [f"{name}: {sentence}; the last value counts" for sentence in duplicates]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problems.append(f"{name}: {where}is not YAML: {error.problem}{_hint(content)}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{name}: is not YAML: {str(error).splitlines()[0]}")
    except ValueError as error:  # of a value such as 2024-13-45
        problems.append(f"{name}: has an invalid date or number: {error}; put quotes around text")
    except RecursionError:
        problems.append(f"{name}: is nested too deeply")


def _parsed(content: bytes, duplicates: list[str]) -> Iterable[object]:
    """Most JSON is YAML, too, but not all escapes in it, and a JSON decoder is many times as fast."""
    with suppress(msgspec.DecodeError):
        return [msgspec.json.decode(content)]
    return _read_yaml(content, duplicates)


def _read_yaml(content: bytes, duplicates: list[str]) -> Iterator[object]:
    loader = _Loader(content, duplicates)
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            yield loader.get_data()
    finally:
        loader.dispose()


def _hint(content: bytes) -> str:
    return "; render templates first, for example with `helm template`" if b"{{" in content else ""


def _opened(document: object, name: str, problems: list[str]) -> Iterator[Mapping[str, object]]:
    """The objects of a document: none if it is empty, the items of a List, else the document itself."""
    if document is None:
        return
    if not isinstance(document, dict):
        problems.append(f"{name}: has a {type(document).__name__} instead of an object with apiVersion and kind")
    elif document.get("kind") == "List":
        items = document.get("items") or []
        if not isinstance(items, list):
            problems.append(f"{name}: has a List whose items are no list")
            return
        for item in items:
            yield from _opened(item, name, problems)
    else:
        yield from _typed_items(document)


def _typed_items(document: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The items of a list such as `PodList`, which have neither kind nor apiVersion; else the document itself."""
    kind, items = str(document.get("kind")), document.get("items")
    if kind.endswith("List") and isinstance(items, list) and all(isinstance(item, dict) for item in items):
        for item in items:
            yield {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
    else:
        yield document


class _Loader(yaml.CSafeLoader):
    """Finds mappings in which a key occurs twice: YAML forbids it, and PyYAML uses the last value."""

    def __init__(self, stream: bytes, duplicates: list[str]) -> None:
        super().__init__(stream)
        self._duplicates = duplicates
        self._root: yaml.Node | None = None
        self._checked: set[yaml.Node] = set()

    def construct_document(self, node: yaml.Node) -> object:
        self._root, self._checked = node, set()
        return super().construct_document(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Is called before a mapping is built or merged; afterwards the mapping contains the keys of `<<`, too."""
        if node not in self._checked:
            self._checked.add(node)
            self._check(node)
        super().flatten_mapping(node)

    def _check(self, node: yaml.MappingNode) -> None:
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    mark, line = key.start_mark, first.start_mark.line + 1
                    where = f"line {mark.line + 1}, column {mark.column + 1}"
                    hint = "; is `---` missing between two objects?" if node is self._root else ""
                    self._duplicates.append(f"{where}: the key {key.value} is already in line {line}{hint}")
