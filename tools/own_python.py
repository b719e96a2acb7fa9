"""Imported first by tools that need the virtual environment: restarts the tool with the Python of that environment."""

import importlib.util
import os
import sys
from pathlib import Path

_PYTHON = Path(__file__).resolve().parent.parent / ".venv/bin/python"

if importlib.util.find_spec("windlass") is None:
    if not _PYTHON.exists():
        sys.exit(f"{sys.argv[0]}: there is no virtual environment yet; run `make setup`")
    os.execv(_PYTHON, [str(_PYTHON), *sys.argv])  # noqa: S606 - no shell is needed
