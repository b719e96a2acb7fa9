"""PersistentMap behaves as a dict that is copied for each update."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.model.mappings import PersistentMap

KEYS = st.sampled_from("abcdefgh")
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.integers()), max_size=12)


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_updates_equal_those_of_a_copied_dict_and_earlier_versions_stay(first, changes):
    current, copied = PersistentMap(dict(first)), dict(first)
    former: list[tuple[PersistentMap[int], dict[str, int]]] = []
    for change in changes:
        former.append((current, dict(copied)))
        current = current.updated(change)
        copied = {key: value for key, value in {**copied, **change}.items() if value is not None}
    for now, expected in (*former, (current, copied)):
        assert dict(now) == expected
        assert len(now) == len(expected)
        assert {key for key in "abcdefgh" if key in now} == expected.keys()


def test_a_removed_key_is_not_found():
    with pytest.raises(KeyError, match="a"):
        PersistentMap({"a": 1}).updated({"a": None})["a"]


def test_many_keys_that_share_shards():
    names = [f"default/service-{number}" for number in range(1000)]
    whole = PersistentMap(dict.fromkeys(names, 1))
    without = whole.updated(dict.fromkeys(names[:500]))
    assert set(without) == set(names[500:])
    assert set(whole) == set(names)
