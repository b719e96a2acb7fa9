"""Files are written whole or not at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import not_on_windows
from windlass import files


@not_on_windows("Windows has no file modes")
def test_write_creates_the_file_with_its_directories_and_mode(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "program"
    files.write(target, b"content", mode=0o755)
    assert target.read_bytes() == b"content"
    assert target.stat().st_mode & 0o777 == 0o755


def test_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    (tmp_path / ".state.json.new").write_bytes(b"a part, left by a crash")
    for content in (b"old", b"new"):
        files.write(target, content)
        assert target.read_bytes() == content
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform != "win32", reason="only Windows refuses to replace a file in use")
def test_without_patience_a_file_in_use_stays_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write(target, b"old")
    with target.open("rb"), pytest.raises(files.FileError, match=r"state\.json: cannot be written"):
        files.write(target, b"new", patience=0)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    files.write(target, b"new", patience=0)
    assert target.read_bytes() == b"new"


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write(target, b"old")

    def parts() -> Iterator[bytes]:
        yield b"ne"
        raise OSError(28, "No space left on device")

    with pytest.raises(files.FileError) as failure:
        files.write(target, parts())
    assert str(failure.value) == f"{target}: cannot be written: No space left on device"
    assert failure.value.errno == 28
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_in_place_of_the_directory_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(files.FileError, match=r"taken.state\.json: cannot be written: "):
        files.write(tmp_path / "taken" / "state.json", b"")


@not_on_windows("Windows has no file modes")
def test_the_content_is_never_readable_to_others_before_it_has_its_mode(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"secret"
        assert (tmp_path / ".key.new").stat().st_mode & 0o777 == 0o600

    files.write(tmp_path / "key", parts(), mode=0o600)


def test_a_link_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"of another user")
    (tmp_path / ".state.json.new").symlink_to(other)
    files.write(tmp_path / "state.json", b"content")
    assert other.read_bytes() == b"of another user"


def test_remove_takes_a_missing_file_for_removed(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write(target, b"")
    files.remove(target)
    files.remove(target)
    assert not target.exists()


def test_remove_says_which_file_it_could_not_remove(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match=f"{re.escape(str(tmp_path))}: cannot be removed: "):
        files.remove(tmp_path)
