"""Fields and matches refuse what no switch would take or no packet could meet."""

from __future__ import annotations

import pytest

from windlass.openflow.fields import ETH_TYPE, TCP_DST, reg
from windlass.openflow.matches import ContradictionError, match


def test_terms_on_different_bits_of_a_field_become_one() -> None:
    assert match(reg(0)[0:16](2), reg(0)[16](1)) == (reg(0)(0x10002, 0x1FFFF),)


def test_a_mask_of_every_bit_is_no_mask() -> None:
    assert reg(0)(5, 0xFFFFFFFF) == reg(0)(5)


def test_a_mask_of_no_bit_is_no_condition() -> None:
    assert match(reg(0)(0, 0)) == ()


def test_conditions_that_exclude_each_other() -> None:
    with pytest.raises(ContradictionError, match="tcp_dst cannot be both 0x50 and 0x51"):
        match(TCP_DST(80), TCP_DST(81))


@pytest.mark.parametrize(
    ("value", "mask", "complaint"),
    [
        (1 << 32, None, "reg0: 0x100000000 does not fit its 32 bits"),
        (0, 1 << 32, "does not fit its 32 bits or its mask"),
        (3, 1, "reg0: 0x3/0x1 does not fit its 32 bits or its mask"),
    ],
)
def test_values_that_do_not_fit(value: int, mask: int | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        reg(0)(value, mask)


def test_a_field_that_has_no_mask() -> None:
    with pytest.raises(ValueError, match="eth_type: Open vSwitch matches it whole or not at all"):
        ETH_TYPE(0x0800, 0xFF00)


def test_bits_that_a_value_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"reg0\[0:4\]: 0x10 does not fit"):
        reg(0)[0:4](16)
