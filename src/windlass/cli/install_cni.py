"""`windlass install-cni`: puts the CNI plugin and its network configuration where the Node's container runtime looks.

Each file is there whole or not at all, whenever this is interrupted, and a plugin that is running is not disturbed. The
configuration comes last: with it the runtime says that the Node has a network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from windlass import files

# The runtime takes the first file of its folder by name.
CONFIGURATION_NAME = "10-windlass.conflist"
PLUGIN_NAME = "windlass-cni"
_FORMS = (".conf", ".conflist", ".json")  # what a runtime takes for a configuration

# A runtime that knows `cniVersions` takes the newest that it can; one that does not would stumble over 1.1.0.
CONFIGURATION = {
    "cniVersion": "1.0.0",
    "cniVersions": ["1.0.0", "1.1.0"],
    "name": "windlass",
    "plugins": [{"type": PLUGIN_NAME}],
}

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(path_type=Path)

BINARIES = click.option(
    "--binaries",
    type=_FOLDER,
    default=Path("/opt/cni/bin"),
    show_default=True,
    help="Where the runtime has its plugins.",
)
CONFIGURATIONS = click.option(
    "--configurations",
    type=_FOLDER,
    default=Path("/etc/cni/net.d"),
    show_default=True,
    help="Where the runtime has its network configurations.",
)


class NotInstalled(Exception):
    """Something is not where it shall be. The message says what, and why."""


@click.command("install-cni")
@BINARIES
@CONFIGURATIONS
@click.option(
    "--plugin",
    "plugins",
    type=_FILE,
    multiple=True,
    default=(Path("/opt/windlass/cni/windlass-cni"),),
    show_default=True,
    help="A program to install in place of any of that name; may be given several times.",
)
@click.option(
    "--plugin-if-absent",
    "spare",
    type=_FILE,
    multiple=True,
    help="A program to install where there is none of that name; may be given several times.",
)
def install_cni(binaries: Path, configurations: Path, plugins: tuple[Path, ...], spare: tuple[Path, ...]) -> None:
    """Install the CNI plugin and its network configuration on this Node. Run again, it does what is missing."""
    try:
        for sentence in install(binaries, configurations, plugins, spare):
            click.echo(sentence)
    except NotInstalled as error:
        click.echo(f"windlass install-cni: {error}", err=True)
        sys.exit(1)


def install(
    binaries: Path, configurations: Path, plugins: tuple[Path, ...], spare: tuple[Path, ...] = ()
) -> Iterator[str]:
    """Does it, and says what it did."""
    for plugin in plugins:
        yield _put(binaries / plugin.name, _content(plugin), 0o755)
    for plugin in spare:
        target = binaries / plugin.name
        yield f"{target}: is there, and stays" if target.exists() else _put(target, _content(plugin), 0o755)
    target = configurations / CONFIGURATION_NAME
    yield _put(target, json.dumps(CONFIGURATION, indent=2).encode() + b"\n", 0o644)
    for other in _before_ours(configurations):
        yield (
            f"{other}: comes before {CONFIGURATION_NAME}, so the runtime attaches Pods to that network and not to "
            "Windlass; remove it when no Pod of this Node needs it any more"
        )


def uninstall(binaries: Path, configurations: Path) -> Iterator[str]:
    """Removes what `install` put there, the configuration first: the runtime then attaches no more Pods.

    A plugin that was installed only because there was none of its name stays: somebody else may use it by now.
    """
    for target in (configurations / CONFIGURATION_NAME, binaries / PLUGIN_NAME):
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
            f"{target}: cannot be written: {error.strerror}; is the Node's folder mounted there, and not read-only?"
        ) from None
    return f"{target}: written, {len(content):,} bytes"


def _is(target: Path, content: bytes, mode: int) -> bool:
    try:
        return target.read_bytes() == content and target.stat().st_mode & 0o777 == mode
    except FileNotFoundError:
        return False


def _before_ours(configurations: Path) -> list[Path]:
    found = (path for path in configurations.iterdir() if path.suffix in _FORMS and path.name < CONFIGURATION_NAME)
    return sorted(found)
