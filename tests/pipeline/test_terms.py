"""Fields, masks, and matches in one canonical form."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.model.families import Family
from windlass.openflow.conditions import (
    ARP,
    destination,
    destination_port,
    icmp,
    ip,
    protocol,
    source,
    tunnel_destination,
)
from windlass.openflow.fields import (
    CT_STATE,
    ETH_SRC,
    ETH_TYPE,
    FIELDS,
    ICMP_TYPE,
    ICMPV6_TYPE,
    IN_PORT,
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    TCP,
    TCP_DST,
    TUN_IPV4_DST,
    TUN_IPV6_DST,
    UDP_DST,
    Bits,
    Term,
    mac,
    reg,
)
from windlass.openflow.matches import ContradictionError, match
from windlass.openflow.notation import mac_text

# Fields -----------------------------------------------------------------------------------------------------------


def test_a_run_of_bits():
    assert reg(0)[0:16] == Bits(reg(0), 0, 16)
    assert reg(0)[17] == Bits(reg(0), 17, 1)
    assert reg(0)[4:8].mask == 0xF0
    assert reg(0)[4:8](0xA) == Term(reg(0), 0xA0, 0xF0)
    assert reg(1).whole == Bits(reg(1), 0, 32)
    assert reg(1).whole(7) == Term(reg(1), 7)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TCP_DST(0x10000), "tcp_dst: 0x10000 does not fit its 16 bits"),
        (lambda: TCP_DST(-1), "tcp_dst: -0x1 does not fit its 16 bits"),
        (lambda: TCP_DST(0, 0x1FFFF), "tcp_dst: 0x0/0x1ffff does not fit its 16 bits or its mask"),
        (lambda: TCP_DST(3, 2), "tcp_dst: 0x3/0x2 does not fit its 16 bits or its mask"),
        (lambda: reg(0)[4:8](0x10), r"reg0\[4:8\]: 0x10 does not fit"),
        (lambda: reg(0)[4:8](-1), r"reg0\[4:8\]: -0x1 does not fit"),
    ],
)
def test_a_value_that_does_not_fit(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_mask_of_all_bits_is_none():
    assert TCP_DST(80, 0xFFFF) == TCP_DST(80) == Term(TCP_DST, 80)


def test_a_field_that_open_vswitch_cannot_mask():
    with pytest.raises(ValueError, match=r"in_port: Open vSwitch cannot match it with a mask \(0x1\)"):
        IN_PORT(1, 1)
    assert IN_PORT(1, 0xFFFFFFFF) == IN_PORT(1)


def test_every_field_is_declared_once():
    assert len({field.name for field in FIELDS}) == len(FIELDS)
    assert len({(field.oxm_class, field.number) for field in FIELDS}) == len(FIELDS)
    assert [field.order for field in FIELDS] == list(range(len(FIELDS)))


@given(st.integers(0, (1 << 48) - 1))
def test_mac_text_is_read_back(value):
    assert mac(mac_text(value)) == value


def test_an_address_or_a_network():
    assert destination(IPv4Address("10.0.0.1")) == (ETH_TYPE(0x800), IPV4_DST(0x0A000001))
    assert destination(IPv4Network("10.1.0.0/16")) == (ETH_TYPE(0x800), IPV4_DST(0x0A010000, 0xFFFF0000))
    assert (
        source(IPv4Network("10.0.0.1/32")) == source(IPv4Address("10.0.0.1")) == (ip(Family.IPV4), IPV4_SRC(0x0A000001))
    )
    assert source(IPv6Address("::1")) == (ETH_TYPE(0x86DD), IPV6_SRC(1))
    assert destination(IPv6Network("fd00::/8")) == (ETH_TYPE(0x86DD), IPV6_DST(0xFD << 120, 0xFF << 120))


def test_the_families_differ_in_field_and_number_only():
    assert protocol(Family.IPV6, TCP) == (ETH_TYPE(0x86DD), IP_PROTO(6))
    assert icmp(Family.IPV4, 8) == (ETH_TYPE(0x800), IP_PROTO(1), ICMP_TYPE(8))
    assert icmp(Family.IPV6, 128) == (ETH_TYPE(0x86DD), IP_PROTO(58), ICMPV6_TYPE(128))
    assert icmp(Family.IPV4) == (ETH_TYPE(0x800), IP_PROTO(1))
    assert destination_port(Family.IPV4, 17, 0x4000, 0xE000)[-1] == UDP_DST(0x4000, 0xE000)
    assert tunnel_destination(IPv4Address("10.0.0.1")) == TUN_IPV4_DST(0x0A000001)
    assert tunnel_destination(IPv6Address("::1")) == TUN_IPV6_DST(1)


# Matches ----------------------------------------------------------------------------------------------------------


def test_conditions_in_any_order_are_one_match():
    one = match(IN_PORT(1), destination(IPv4Address("10.0.0.1")), reg(0)[17](1))
    other = match(reg(0)[17](1), destination(IPv4Address("10.0.0.1")), IN_PORT(1))
    assert one == other
    assert hash(one) == hash(other)
    assert [term.field for term in one] == [IN_PORT, ETH_TYPE, IPV4_DST, reg(0)]


def test_bits_of_one_field_become_one_term():
    assert match(reg(0)[0:16](2), reg(0)[17](1)) == (Term(reg(0), 0x20002, 0x2FFFF),)
    assert match(CT_STATE(0x20, 0x20), CT_STATE(1, 1)) == (CT_STATE(0x21, 0x21),)
    assert match(TCP_DST(0x1200, 0xFF00), TCP_DST(0x34, 0xFF)) == (TCP_DST(0x1234),)


def test_a_repeated_condition_is_one_term():
    assert match(ip(Family.IPV4), IPV4_DST(1), ip(Family.IPV4), IPV4_DST(1)) == (ETH_TYPE(0x800), IPV4_DST(1))
    assert match(IN_PORT(1), IN_PORT(1)) == (IN_PORT(1),)


def test_an_address_within_a_network_is_the_narrower_of_both():
    within = match(destination(IPv4Network("10.0.0.0/8")), destination(IPv4Address("10.0.0.1")))
    assert within == match(destination(IPv4Address("10.0.0.1")))


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ((ARP, ip(Family.IPV4)), "eth_type cannot be both 0x806 and 0x800"),
        ((IN_PORT(1), IN_PORT(2)), "in_port cannot be both 0x1 and 0x2"),
        ((reg(0)[0:16](2), reg(0)[0:16](4)), "reg0 cannot be both 0x2 and 0x4"),
        ((ETH_SRC(1), ETH_SRC(0, 1)), "eth_src cannot be both 0x1 and 0x0"),
    ],
)
def test_conditions_that_exclude_each_other(conditions, sentence):
    with pytest.raises(ContradictionError, match=sentence):
        match(*conditions)


def test_no_condition_matches_everything():
    assert match() == ()
    assert match(destination(IPv4Network("0.0.0.0/0"))) == (ETH_TYPE(0x800),)


terms = st.builds(
    lambda register, low, width, value: reg(register)[low : low + width](value & ((1 << width) - 1)),
    st.integers(0, 2),
    st.integers(0, 16),
    st.integers(1, 16),
    st.integers(0, 0xFFFF),
)


@given(st.lists(terms, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_conditions_does_not_matter(conditions, random):
    shuffled = random.sample(conditions, len(conditions))
    try:
        expected = match(*conditions)
    except ContradictionError:
        with pytest.raises(ContradictionError):
            match(*shuffled)
    else:
        assert match(*shuffled) == expected
        assert match(expected, *shuffled) == expected
