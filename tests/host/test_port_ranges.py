from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from windlass.host.port_ranges import parse, port_set, ranges, text

PORTS = st.sets(st.integers(0, 80) | st.integers(65500, 65535))


@given(PORTS)
def test_ranges_hold_exactly_the_ports_of_the_set(ports):
    found = ranges(port_set((port, port) for port in ports))
    assert {port for first, last in found for port in range(first, last + 1)} == ports


@given(PORTS)
def test_ranges_are_in_order_and_do_not_touch(ports):
    found = ranges(port_set((port, port) for port in ports))
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found))


@given(PORTS)
def test_the_text_of_a_set_is_read_as_the_same_set(ports):
    whole = port_set((port, port) for port in ports)
    assert port_set(parse(text(whole))) == whole


def test_a_single_port_is_written_without_a_range():
    assert text(port_set([(1, 5), (9, 9)])) == "1-5,9"
