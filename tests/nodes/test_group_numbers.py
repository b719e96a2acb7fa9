"""Group numbers: a name keeps its number, and no two names ever have the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.nodes import group_numbers as module
from windlass.nodes.group_numbers import FILE, SPACE, GroupNumbers

NAMES = [f"default/{letter} http 6 IPv4" for letter in "abcdefgh"]
SPACES = 12  # so few that names want what others have


@given(st.lists(st.text(), unique=True))
def test_each_name_has_a_space_of_its_own(names):
    numbers = GroupNumbers()
    given_out = [numbers.of(name) for name in names]
    assert len(set(given_out)) == len(names)
    assert all(number % SPACE == 0 and 0 <= number < 0xFFFFFF00 for number in given_out)


def test_the_first_number_is_the_digest_of_the_name():
    assert GroupNumbers().of("default/web http 6 IPv4") == GroupNumbers().of("default/web http 6 IPv4")


@given(lives=st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1))
def test_a_name_keeps_its_number_in_whatever_order_agents_meet_the_names(lives):
    """Each agent meets the Services in an order of its own; some are gone by then, some are new."""
    with tempfile.TemporaryDirectory() as folder:
        before: dict[str, int] = {}
        for names in lives:
            numbers = GroupNumbers(Path(folder), SPACES)
            now = {name: numbers.of(name) for name in names}
            numbers.keep()
            numbers.forget_all_but(names)
            assert len(set(now.values())) == len(now)
            assert all(before[name] == now[name] for name in before.keys() & now.keys())
            before = now


def test_two_names_of_one_digest_are_not_exchanged_by_a_restart(tmp_path):
    """With two spaces, of three names two have the same digest."""
    numbers = GroupNumbers(tmp_path, spaces=3)
    given_out = {name: numbers.of(name) for name in ("a", "b", "c")}
    numbers.keep()
    again = GroupNumbers(tmp_path, spaces=3)
    assert {name: again.of(name) for name in ("c", "b", "a")} == given_out
    forgetful = GroupNumbers(spaces=3)
    assert {name: forgetful.of(name) for name in ("c", "b", "a")} != given_out


@pytest.mark.parametrize("torn", ["{", "7 default/half", "x default/web\n", "99 far-off\n", "\udcff"])
def test_a_line_that_makes_no_sense_counts_for_nothing(tmp_path, torn):
    (tmp_path / FILE).write_text("1 default/known\n" + torn, errors="surrogateescape")
    numbers = GroupNumbers(tmp_path, SPACES)
    assert len({numbers.of(name) for name in NAMES}) == len(NAMES)


def test_a_disk_that_cannot_be_written_to_is_a_sentence_and_numbers_are_given_all_the_same(tmp_path):
    (tmp_path / "taken").write_text("a file where the directory should be")
    numbers = GroupNumbers(tmp_path / "taken", SPACES)
    assert len({numbers.of(name) for name in NAMES}) == len(NAMES)
    numbers.keep()
    assert "group numbers cannot be kept" in numbers.problem


def test_names_of_deleted_services_leave_the_file_once_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STALE", 3)
    numbers = GroupNumbers(tmp_path, SPACES)
    kept = {name: numbers.of(name) for name in NAMES}
    numbers.keep()
    numbers.forget_all_but(NAMES[:5])
    assert len((tmp_path / FILE).read_text().splitlines()) == len(NAMES)  # not so many yet
    numbers.forget_all_but(NAMES[:2])
    assert len((tmp_path / FILE).read_text().splitlines()) == 2
    again = GroupNumbers(tmp_path, SPACES)
    assert {name: again.of(name) for name in NAMES[:2]} == {name: kept[name] for name in NAMES[:2]}
