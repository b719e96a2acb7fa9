"""The fast parser of addresses is as strict as that of Python."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cluster.addresses import complaint, read_address, read_addresses, read_network
from windlass.model.families import Family

plain = st.ip_addresses()
padded = st.ip_addresses(v=6).map(lambda address: address.exploded)
rubbish = st.text("0123456789abcdef.:%/ \0", max_size=12)


@given(st.one_of(plain.map(str), padded, rubbish))
def test_the_parser_agrees_with_ipaddress(text):
    read = read_address(text)
    if read is None:
        assert text in complaint(text) or repr(text) in complaint(text)
        return
    packed, address = read
    assert address == ip_address(text)
    assert packed == address.packed


@given(plain)
def test_only_addresses_of_special_use_are_refused(address):
    allowed = not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (address.version == 4 and (address.is_reserved or address in ip_network("0.0.0.0/8")))
        or (address.version == 6 and address.ipv4_mapped is not None)
    )
    assert (read_address(str(address)) is not None) == allowed


@given(st.lists(st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), rubbish), max_size=6))
def test_a_list_is_parsed_like_its_items(texts):
    for family in Family:
        packed, bad = read_addresses(texts, family)
        each = [read_address(text) for text in texts]
        wanted = [read if read and read[1].version == family.value else None for read in each]
        assert packed == [read[0] for read in wanted if read]
        assert bad == [place for place, read in enumerate(wanted) if read is None]


@pytest.mark.parametrize("text", ["fe80::1%eth0", "fd00::1%eth0", "10.0.0.1/32", "10.0.0", "0x0a000001", "１０.0.0.1"])  # noqa: RUF001
def test_zones_shorthands_and_other_digits_are_refused(text):
    assert read_address(text) is None


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        (" 10.1.2.3/8 ", "10.0.0.0/8"),
        ("fd00::1/64", "fd00::/64"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.0", None),
        ("10.0.0.0/", None),
        ("10.0.0.0/33", None),
        ("10.0.0.0/-1", None),
        ("10.0.0.0/255.0.0.0", None),
        ("/8", None),
        ("", None),
    ],
)
def test_a_network_needs_a_prefix_length(text, network):
    assert read_network(text) == (ip_network(network) if network else None)
