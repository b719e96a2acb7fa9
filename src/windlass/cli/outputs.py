"""Where a command writes to: found wrong before minutes of work, not after them."""

from __future__ import annotations

from pathlib import Path

import click


class _File(click.Path):
    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(str(super().convert(value, parameter, context)))  # type: ignore[arg-type]  # click's own is Any
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is no folder: make it first, or choose another.", parameter, context)
        return path


FILE = _File(dir_okay=False, writable=True)
FOLDER = click.Path(file_okay=False, writable=True, path_type=Path)
