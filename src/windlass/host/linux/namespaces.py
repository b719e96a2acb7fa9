"""Creates, removes and enters network namespaces. A socket stays in the namespace in which it was created."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAMED = Path("/run/netns")  # where iproute2 keeps named namespaces, so that `ip netns` sees ours too

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 1 << 20
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def path_of(name: str) -> Path:
    return NAMED / name


@contextmanager
def entered(path: Path | str) -> Iterator[None]:
    """Move this thread into the namespace at `path` within the block."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(there, _CLONE_NEWNET), f"enter network namespace {path}")
        finally:
            os.close(there)
        try:
            yield
        finally:
            _checked(_libc.setns(home, _CLONE_NEWNET), "return to the first network namespace")
    finally:
        os.close(home)


def join(namespace: int) -> None:
    """Move this thread into the namespace of the file descriptor, permanently."""
    _checked(_libc.setns(namespace, _CLONE_NEWNET), "join a network namespace")


def create(name: str) -> Path:
    """Create a named namespace. It exists until `delete`, also after this process."""
    _make_named_directory_shared()
    path = path_of(name)
    path.touch(mode=0o444, exist_ok=False)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.unshare(_CLONE_NEWNET), f"make network namespace {name}")
        try:
            _checked(
                _libc.mount(b"/proc/thread-self/ns/net", str(path).encode(), None, _MS_BIND, None),
                f"name network namespace {name}",
            )
        finally:
            _checked(_libc.setns(home, _CLONE_NEWNET), "return to the first network namespace")
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(home)
    return path


def delete(name: str) -> None:
    """Remove the name, if it exists. The kernel removes the namespace with its last process and socket."""
    path = path_of(name)
    _libc.umount2(str(path).encode(), _MNT_DETACH)  # fails if it is not mounted
    with suppress(FileNotFoundError):
        path.unlink()


def _make_named_directory_shared() -> None:
    """Does what `ip netns add` does: otherwise other mount namespaces would not see the mount."""
    NAMED.mkdir(mode=0o755, exist_ok=True)
    directory = str(NAMED).encode()
    if _libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None) != 0:
        _checked(_libc.mount(directory, directory, b"none", _MS_BIND | _MS_REC, None), f"bind {NAMED}")
        _checked(_libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None), f"share {NAMED}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"could not {what}: {os.strerror(number)}")
