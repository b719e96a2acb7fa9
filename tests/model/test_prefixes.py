"""Prefixes say the same as the networks of `ipaddress`."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import example, given
from hypothesis import strategies as st

from windlass.model.families import IPNetwork
from windlass.model.prefixes import address_of, network_of, prefix_of, prefix_text
from windlass.openflow.conditions import destination, source

with_zeros = st.lists(st.sampled_from([0, 0, 1, 0xFFFF]), min_size=8, max_size=8).map(
    lambda groups: sum(group << 16 * place for place, group in enumerate(groups))
)
networks = st.one_of(
    st.builds(lambda a, n: network_of((4, a >> 32 - n << 32 - n, n)), st.integers(0, 2**32 - 1), st.integers(0, 32)),
    st.builds(
        lambda a, n: network_of((6, a >> 128 - n << 128 - n, n)),
        st.integers(0, 2**128 - 1) | with_zeros,
        st.integers(0, 128),
    ),
)


@given(networks)
@example(ip_network("::ffff:192.0.2.1/128"))
@example(ip_network("::192.0.2.1/128"))
def test_a_prefix_is_its_network(network: IPNetwork):
    prefix = prefix_of(network)
    assert network_of(prefix) == network
    assert prefix_text(prefix) == str(network)
    assert (address_of(prefix) is not None) == (network.num_addresses == 1)
    assert source(prefix) == source(network)
    assert destination(prefix) == destination(network)


@given(networks)
def test_the_prefix_of_an_address_holds_it_alone(network: IPNetwork):
    assert address_of(prefix_of(network.network_address)) == network.network_address
