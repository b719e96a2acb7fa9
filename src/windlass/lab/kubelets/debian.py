"""Unpacks Debian packages and their dependencies into a folder, without installing them on this machine.

Maintainer scripts do not run: that is enough for programs and libraries, not for services.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from windlass.lab.sandbox.processes import output_of

# Packages that only set up a system: no program needs them to run.
_NOT_NEEDED = re.compile(
    r"(perl|debconf|cdebconf|dpkg|init-system-helpers|adduser|passwd|lsb-|sensible-utils|ucf|systemd)"
)
_DATA = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "var/cache")


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Creates `folder` when everything is unpacked."""
    downloads, fresh = folder.with_name(f"{folder.name}.packages"), folder.with_name(f"{folder.name}.new")
    for former in (downloads, fresh):
        shutil.rmtree(former, ignore_errors=True)
        former.mkdir(parents=True)
    output_of("apt-get", "download", *_with_dependencies(packages), folder=downloads)
    for package in sorted(downloads.iterdir()):
        output_of("dpkg", "-x", str(package), str(fresh), folder=downloads)
    for data in _DATA:
        shutil.rmtree(fresh / data, ignore_errors=True)
    shutil.rmtree(downloads)
    fresh.rename(folder)


def _with_dependencies(packages: Collection[str]) -> list[str]:
    unwanted = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    options = [f"--no-{kind}" for kind in unwanted]
    if not _is_known(packages):
        output_of("apt-get", "update", "-qq")
    listed = output_of("apt-cache", "depends", "--recurse", *options, *packages)
    names = {line for line in listed.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]*", line)}
    return sorted(name for name in _real(names) if name in packages or not _NOT_NEEDED.match(name))


def _is_known(packages: Collection[str]) -> bool:
    return _real(packages) >= set(packages)


def _real(names: Collection[str]) -> set[str]:
    """The names of real packages, without virtual ones."""
    listed = output_of("apt-cache", "policy", *sorted(names))
    found: set[str] = set()
    name = ""
    for line in listed.splitlines():
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif line.startswith("  Candidate:") and "(none)" not in line:
            found.add(name)
    return found
