"""The page about the chart's values, from the comments in its values.yaml."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

VALUES = Path(__file__).parent.parent / "deploy" / "chart" / "values.yaml"
AS_IT_IS = {"resources", "labels"}  # a value that is a map, not a group of values


def page(note: str) -> str:
    lines = [
        "# Values of the chart",
        "",
        note,
        "`deploy/chart/values.yaml`, with what each means. A value that is unknown or does not fit is refused by its",
        "name (`values.schema.json`). [Installing](install.md) says how to use them, [configuration](configuration.md)",
        "more of those under `config`.",
        "",
        "| value | default | meaning |",
        "| --- | --- | --- |",
    ]
    defaults = yaml.safe_load(VALUES.read_text())
    for path, meaning in _explained(VALUES.read_text()):
        value = defaults
        for name in path:
            value = value[name]
        is_group = isinstance(value, dict) and value and path[-1] not in AS_IT_IS
        lines.append(f"| `{'.'.join(path)}` | {'' if is_group else _shown(value)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if value in ("", [], {}):
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _explained(text: str) -> list[tuple[tuple[str, ...], str]]:
    """Each value that has a comment above it: its path, and the comment."""
    found: list[tuple[tuple[str, ...], str]] = []
    above: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        if match := re.match(r"( *)(\w+):", line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if above:
                found.append((tuple(path), " ".join(above)))
        above = []
    return found
