"""Sets of ports: their operations agree with plain sets, and their text is readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.model.port_sets import (
    ALL_PORTS,
    NO_PORTS,
    PortSet,
    contains,
    difference,
    in_words,
    intersection,
    is_partial,
    ports,
    union,
)
from windlass.model.services import Protocol

# Few ports around the ends of protocols, so that ranges meet, touch and span protocols.
few_ports = st.sampled_from([0, 1, 2, 80, 81, 65534, 65535])
ranges = st.tuples(st.sampled_from(Protocol), few_ports, few_ports).map(lambda one: ports(*one))
port_sets = st.lists(ranges | st.just(ALL_PORTS), max_size=4).map(union)
traffic = st.tuples(st.sampled_from(Protocol), few_ports) | st.just((None, None))


@given(port_sets, port_sets, traffic)
def test_operations_agree_with_the_contents_of_the_sets(left: PortSet, right: PortSet, one: tuple):
    in_left, in_right = contains(left, *one), contains(right, *one)
    assert contains(union((left, right)), *one) == (in_left or in_right)
    assert contains(intersection(left, right), *one) == (in_left and in_right)
    assert contains(difference(left, right), *one) == (in_left and not in_right)


@given(port_sets, st.sampled_from(Protocol))
def test_a_set_is_partial_if_it_has_some_ports_of_a_protocol_but_not_all(one: PortSet, protocol: Protocol):
    found = {contains(one, protocol, port) for port in range(0x10000)}
    assert is_partial(one, protocol) == (len(found) == 2)


@given(port_sets, port_sets)
def test_equal_sets_are_equal_values(left: PortSet, right: PortSet):
    assert union((left, right)) == union((right, left))
    assert union((difference(left, right), intersection(left, right))) == left


@pytest.mark.parametrize(
    ("port_set", "words"),
    [
        (ALL_PORTS, "all traffic"),
        (NO_PORTS, "nothing"),
        (ports(Protocol.TCP, 80, 80), "TCP 80"),
        (union([ports(Protocol.UDP, 53, 54), ports(Protocol.TCP, 80, 80)]), "TCP 80, UDP 53-54"),
        (union(ports(one) for one in Protocol), "all of TCP, all of UDP, all of SCTP"),
        (difference(ALL_PORTS, ports(Protocol.TCP)), "all of UDP, all of SCTP, protocols without ports"),
    ],
)
def test_words(port_set: PortSet, words: str):
    assert in_words(port_set) == words
