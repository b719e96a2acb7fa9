"""Buckets that differ only in the address to which they translate are stored as one value and read as separate ones."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.model.services import Endpoint
from windlass.openflow.actions import Ct, Move, Nat, Set
from windlass.openflow.fields import CT_MARK, reg
from windlass.openflow.flows import Bucket, Group, Translations
from windlass.openflow.ofctl import group_text
from windlass.openflow.wire import groups

DOES = Ct(7, 70, commit=True)
addresses = st.one_of(
    st.builds(IPv4Address, st.integers(0, 2**32 - 1)), st.builds(IPv6Address, st.integers(0, 2**128 - 1))
)
places = st.lists(st.builds(Endpoint.at, addresses, st.integers(0, 65535)), max_size=20).map(tuple)
sets = st.sampled_from([(), (Set(CT_MARK(1, 1)),), (Set(CT_MARK(2, 2)), Move(reg(0)[3], CT_MARK[4]))])
cts = st.builds(Ct, st.integers(0, 65535), st.one_of(st.none(), st.integers(0, 254)), st.booleans(), st.none(), sets)


@given(cts, places)
def test_they_are_encoded_as_separate_buckets(does, to):
    kept = Translations(does, to)
    assert groups.encode(Group(1, kept, "")) == groups.encode(Group(1, tuple(kept), ""))
    assert group_text(Group(1, kept, "")) == group_text(Group(1, tuple(kept), ""))


@given(cts, places)
def test_buckets_differ_only_in_their_translation(does, to):
    for index, (bucket, place) in enumerate(zip(Translations(does, to), to, strict=True)):
        nat = Nat(to=place.address, ports=(place.port, place.port))
        assert bucket == Bucket(index, (Ct(does.zone, does.table, does.commit, nat, does.sets),))


def test_they_are_a_sequence():
    kept = Translations(DOES, tuple(Endpoint.at(IPv4Address(number), 80) for number in range(3)))
    assert len(kept) == 3
    assert [kept[0], kept[1], kept[-1]] == list(kept)
    with pytest.raises(IndexError):
        kept[3]


def test_too_many_are_refused():
    many = tuple(Endpoint.at(IPv4Address(number), 80) for number in range(2000))
    with pytest.raises(groups.GroupTooLargeError, match="2000 buckets"):
        groups.encode(Group(1, Translations(DOES, many), ""))
