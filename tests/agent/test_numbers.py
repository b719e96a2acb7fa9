"""Group numbers: the same after every restart, and never the same twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.agent.numbers import SPACE, GroupNumbers


@given(st.lists(st.text(), unique=True))
def test_each_name_has_a_space_of_its_own(names):
    numbers = GroupNumbers()
    given_out = [numbers.of(name) for name in names]
    assert len(set(given_out)) == len(names)
    assert all(number % SPACE == 0 and 0 <= number < 0xFFFFFF00 for number in given_out)


def test_a_restarted_agent_gives_the_same_numbers():
    assert GroupNumbers().of("default/web http 6 IPv4") == GroupNumbers().of("default/web http 6 IPv4")


def test_a_number_that_is_taken_goes_to_nobody_else():
    numbers = GroupNumbers()
    taken = numbers.of("default/web")
    numbers._by_name.clear()  # as if another name had the same digest
    assert numbers.of("default/web") == taken + SPACE
