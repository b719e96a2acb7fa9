"""`windlass install-cni`: installs the CNI plugin and its network configuration for the container runtime.

Files are replaced atomically: an interruption leaves no partial file, and a plugin that runs is not affected. The
configuration comes last: once it exists, the runtime reports the network of the Node as ready.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from windlass import files
from windlass.cli.outputs import fail
from windlass.places import HERE

# The runtime uses the first file of its directory, by name.
CONFIGURATION_NAME = "10-windlass.conflist"
PLUGIN = Path(HERE.shipped_plugin)
_SUFFIXES = (".conf", ".conflist", ".json")  # file types that a runtime reads

# A runtime that knows `cniVersions` selects the newest that it supports; one that does not would reject 1.1.0.
CONFIGURATION = {
    "cniVersion": "1.0.0",
    "cniVersions": ["1.0.0", "1.1.0"],
    "name": "windlass",
    # Windows Pods have no resolv.conf: the runtime must pass their DNS settings to the plugin.
    "plugins": [{"type": PLUGIN.stem, **({"capabilities": {"dns": True}} if sys.platform == "win32" else {})}],
}

_FILE = click.Path(path_type=Path)

_folder_option = partial(click.option, type=click.Path(file_okay=False, path_type=Path), show_default=True)
BINARIES = _folder_option("--binaries", default=Path(HERE.cni_binaries), help="The runtime's directory of plugins.")
CONFIGURATIONS = _folder_option(
    "--configurations", default=Path(HERE.cni_configurations), help="The runtime's directory of network configurations."
)


class NotInstalled(Exception):
    """A file could not be installed or removed. The message says which one, and why."""


@click.command("install-cni")
@BINARIES
@CONFIGURATIONS
@click.option(
    "--plugin",
    "plugins",
    type=_FILE,
    multiple=True,
    default=(PLUGIN,),
    show_default=True,
    help="A program to install; it replaces one of the same name. Can be repeated.",
)
@click.option(
    "--plugin-if-absent",
    "if_absent",
    type=_FILE,
    multiple=True,
    help="A program to install unless one of the same name exists. Can be repeated.",
)
def install_cni(binaries: Path, configurations: Path, plugins: tuple[Path, ...], if_absent: tuple[Path, ...]) -> None:
    """Install the CNI plugin and its network configuration on this Node. Running it again changes only what differs.

    Exit status: 0 installed, 1 a file could not be read or written (the error names it).
    """
    try:
        for sentence in install(binaries, configurations, plugins, if_absent):
            click.echo(sentence)
    except NotInstalled as error:
        fail("install-cni", error, status=1)


def install(
    binaries: Path, configurations: Path, plugins: tuple[Path, ...], if_absent: tuple[Path, ...] = ()
) -> Iterator[str]:
    """Install, and yield a sentence for each step."""
    for plugin in plugins:
        yield _put(binaries / plugin.name, _content(plugin), 0o755)
    for plugin in if_absent:
        target = binaries / plugin.name
        yield f"{target}: exists, not replaced" if target.exists() else _put(target, _content(plugin), 0o755)
    target = configurations / CONFIGURATION_NAME
    yield _put(target, json.dumps(CONFIGURATION, indent=2).encode() + b"\n", 0o644)
    for other in _before_ours(configurations):
        yield (
            f"{other}: sorts before {CONFIGURATION_NAME}, so the runtime attaches Pods to that network and not to "
            "Windlass; remove it when no Pod of this Node needs it any more"
        )


def uninstall(binaries: Path, configurations: Path) -> Iterator[str]:
    """Remove what `install` installed, the configuration first: without it the runtime attaches no more Pods.

    Plugins of `--plugin-if-absent` stay: other networks may use them by now.
    """
    for target in (configurations / CONFIGURATION_NAME, binaries / PLUGIN.name):
        try:
            target.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotInstalled(f"{target}: cannot be removed: {error.strerror}") from None
        yield f"{target}: removed"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise NotInstalled(f"{file}: the program to install cannot be read: {error.strerror}") from None


def _put(target: Path, content: bytes, mode: int) -> str:
    try:
        if _is(target, content, mode):
            return f"{target}: is up to date"
        files.write(target, content, mode=mode)
    except OSError as error:
        raise NotInstalled(
            f"{target}: cannot be written: {error.strerror}; is the directory of the Node mounted there, and writable?"
        ) from None
    return f"{target}: written, {len(content):,} bytes"


def _is(target: Path, content: bytes, mode: int) -> bool:
    try:
        has_mode = os.name == "nt" or target.stat().st_mode & 0o777 == mode  # Windows has no modes
        return has_mode and target.read_bytes() == content
    except FileNotFoundError:
        return False


def _before_ours(configurations: Path) -> list[Path]:
    found = (path for path in configurations.iterdir() if path.suffix in _SUFFIXES and path.name < CONFIGURATION_NAME)
    return sorted(found)
