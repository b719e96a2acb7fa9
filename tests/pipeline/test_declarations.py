"""Declarations that contradict each other are errors when they are made, not at midnight."""

from __future__ import annotations

import pytest

from windlass.openflow.actions import Goto, Set
from windlass.openflow.fields import IN_PORT, reg
from windlass.pipeline.declarations import DeclarationError, Layout, Mark, goto
from windlass.pipeline.layout import LAYOUT


def test_two_fields_that_overlap():
    layout = Layout()
    layout.field(reg(0)[0:16], "source", "where from")
    with pytest.raises(DeclarationError, match="other overlaps source in reg0"):
        layout.field(reg(0)[15:20], "other", "too close")
    layout.field(reg(0)[16:20], "beside", "just beside")
    layout.field(reg(1)[0:16], "elsewhere", "the same bits of another register")


@pytest.mark.parametrize("bits", [reg(0)[0:33], reg(0)[32], reg(0)[4:4]])
def test_bits_that_the_register_does_not_have(bits):
    with pytest.raises(DeclarationError, match="wide: reg0 has bits 0 to 31, not all of these"):
        Layout().field(bits, "wide", "more than there is")


def test_a_value_that_does_not_fit():
    field = Layout().field(reg(0)[0:4], "source", "where from")
    with pytest.raises(ValueError, match=r"reg0\[0:4\]: 0x10 does not fit"):
        field.mark(16, "TooMuch")


def test_a_value_with_two_names():
    field = Layout().field(reg(0)[0:4], "source", "where from")
    field.mark(1, "Tunnel")
    with pytest.raises(DeclarationError, match="source: 1 is declared as Tunnel and as Gateway"):
        field.mark(1, "Gateway")


def test_a_table_out_of_order():
    layout = Layout()
    layout.table(5, "Uplink", "from the wire?")
    with pytest.raises(DeclarationError, match="table Classifier: 0 is not past the tables declared before it"):
        layout.table(0, "Classifier", "which port?")


def test_a_table_declared_twice():
    layout = Layout()
    layout.table(5, "Uplink", "from the wire?")
    with pytest.raises(DeclarationError, match="table Uplink: 5 is not past"):
        layout.table(5, "Uplink", "again?")
    with pytest.raises(DeclarationError, match="table Uplink: 6 has the name of another table"):
        layout.table(6, "Uplink", "again?")


@pytest.mark.parametrize("number", [-1, 255])
def test_a_table_that_open_vswitch_does_not_have(number):
    with pytest.raises(DeclarationError, match=f"table Far: {number} is not a table; they are 0 to 254"):
        Layout().table(number, "Far", "where?")


def test_a_table_that_nothing_leads_to():
    layout = Layout()
    layout.table(0, "Classifier", "which port?")
    layout.table(5, "Island", "how did we get here?")
    with pytest.raises(DeclarationError, match="nothing leads to table Island"):
        layout.complete()


def test_a_table_that_leads_back():
    layout = Layout()
    layout.table(0, "Classifier", "which port?", leads_to=("Later",))
    layout.table(5, "Later", "and now?", leads_to=("Classifier",))
    with pytest.raises(DeclarationError, match="table Later leads back to Classifier: packets could circle"):
        layout.complete()


def test_a_table_that_leads_to_itself():
    layout = Layout()
    layout.table(0, "Classifier", "which port?", leads_to=("Classifier",))
    with pytest.raises(DeclarationError, match="leads back to Classifier"):
        layout.complete()


def test_a_table_that_leads_to_nowhere():
    layout = Layout()
    layout.table(0, "Classifier", "which port?", leads_to=("Nirvana",))
    with pytest.raises(DeclarationError, match="table Classifier leads to Nirvana, which is not declared"):
        layout.complete()


def test_a_complete_layout():
    layout = Layout()
    first = layout.table(0, "Classifier", "which port?", leads_to=("Later",))
    later = layout.table(5, "Later", "and now?")
    layout.complete()
    assert layout.named(0) is first
    assert first.flow(200, IN_PORT(1)).then(goto(later), why="on").actions == (Goto(5),)
    assert later.flow(0).drop(why="the end").actions == ()


def test_a_flag_is_a_condition_and_an_action():
    flag = Layout().flag(reg(0)[17], "snat", "leaves as the Node")
    assert flag == Mark(reg(0)[17], 1, "snat")
    assert tuple(flag) == (reg(0)(0x20000, 0x20000),)
    assert flag.set() == Set(reg(0)(0x20000, 0x20000))


def test_the_pipeline_explains_itself():
    """The docs and the rendered flows take their words from here."""
    assert all(table.question.endswith((".", "?")) and table.miss for table in LAYOUT.tables.values())
    assert all(field.purpose for field in LAYOUT.fields)


def test_the_numbers_of_the_design_notes_stay():
    """Somebody who knows the notes recognises a dump."""
    numbers = {table.name: number for number, table in LAYOUT.tables.items()}
    named = {"Classifier": 0, "Uplink": 5, "NodePortFilter": 6, "Conntrack": 30, "ConntrackState": 31}
    named |= {"ServiceLB": 41, "L3Forwarding": 70, "ConntrackCommit": 105, "L2ForwardingOut": 110}
    assert named.items() <= numbers.items()
