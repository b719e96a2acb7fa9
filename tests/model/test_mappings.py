"""A mapping that changes by making another one: as a dict that is copied, but for the work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.model.mappings import Patched

KEYS = st.sampled_from("abcdefgh")
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.integers()), max_size=12)


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_it_is_what_a_copied_dict_would_be_and_the_former_stays(first, changes):
    patched, copied = Patched(dict(first)), dict(first)
    former: list[tuple[Patched[int], dict[str, int]]] = []
    for change in changes:
        former.append((patched, dict(copied)))
        patched = patched.patched(change)
        copied = {key: value for key, value in {**copied, **change}.items() if value is not None}
    for now, expected in (*former, (patched, copied)):
        assert dict(now) == expected
        assert len(now) == len(expected)
        assert {key for key in "abcdefgh" if key in now} == expected.keys()


def test_what_is_gone_is_not_there():
    with pytest.raises(KeyError, match="a"):
        Patched({"a": 1}).patched({"a": None})["a"]


def test_many_keys_that_share_shards():
    names = [f"default/service-{number}" for number in range(1000)]
    whole = Patched(dict.fromkeys(names, 1))
    without = whole.patched(dict.fromkeys(names[:500]))
    assert set(without) == set(names[500:])
    assert set(whole) == set(names)
