"""The `windlass` command: each subcommand is thin, over the package that does the work."""

from windlass.cli.main import main

__all__ = ["main"]
