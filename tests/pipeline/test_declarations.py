"""Declarations that contradict each other are errors at import."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from windlass.model.families import Family
from windlass.openflow.actions import Goto, Output, Set
from windlass.openflow.fields import IN_PORT, reg
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import ONWARD, Layout, Miss, goto, onward
from windlass.pipeline.layout import LAYOUT
from windlass.pipeline.registers import DeclarationError, Mark, adjacent
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, NODE_STAND_IN, VIRTUAL_ADDRESSES, VIRTUAL_CLIENT

DROP = Miss("nothing matches: drop")

# Register fields ----------------------------------------------------------------------------------------------------


def test_two_fields_that_overlap():
    layout = Layout()
    layout.field(reg(0)[0:16], "source", "where from")
    with pytest.raises(DeclarationError, match="other overlaps source in reg0"):
        layout.field(reg(0)[15:20], "other", "too close")
    layout.field(reg(0)[16:20], "beside", "just beside")
    layout.field(reg(1)[0:16], "elsewhere", "the same bits of another register")


@pytest.mark.parametrize("bits", [reg(0)[0:33], reg(0)[32], reg(0)[4:4]])
def test_bits_that_the_register_does_not_have(bits):
    with pytest.raises(DeclarationError, match="wide: reg0 has only the bits 0 to 31"):
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


def test_a_name_of_two_fields():
    layout = Layout()
    layout.field(reg(0)[0:4], "source", "where from")
    with pytest.raises(DeclarationError, match="source is declared twice"):
        layout.field(reg(1)[0:4], "source", "again")


def test_two_flags_that_one_move_cannot_copy():
    layout = Layout()
    one, two, far = (layout.flag(reg(0)[bit], f"bit {bit}", "a flag") for bit in (3, 4, 6))
    assert adjacent(one, two) == reg(0)[3:5]
    with pytest.raises(DeclarationError, match="bit 6 does not follow bit 4: one move cannot copy both"):
        adjacent(two, far)


def test_a_flag_is_a_condition_and_an_action():
    flag = Layout().flag(reg(0)[17], "snat", "leaves as the Node")
    assert flag == Mark(reg(0)[17], 1, "snat")
    assert tuple(flag) == (reg(0)(0x20000, 0x20000),)
    assert flag.set() == Set(reg(0)(0x20000, 0x20000))


# Tables -------------------------------------------------------------------------------------------------------------


def test_a_table_out_of_order():
    stage = Layout().stage("one", "the only one")
    stage.table(5, "Uplink", "from the wire?", miss=DROP)
    with pytest.raises(DeclarationError, match="table Classifier: 0 is not above 5, the table declared before it"):
        stage.table(0, "Classifier", "which port?", miss=DROP)


def test_a_table_declared_twice():
    stage = Layout().stage("one", "the only one")
    stage.table(5, "Uplink", "from the wire?", miss=DROP)
    with pytest.raises(DeclarationError, match="table Uplink: 5 is not above 5"):
        stage.table(5, "Uplink", "again?", miss=DROP)
    with pytest.raises(DeclarationError, match="table Uplink: 6 has the name of another table"):
        stage.table(6, "Uplink", "again?", miss=DROP)


@pytest.mark.parametrize("number", [-1, 255])
def test_a_table_that_open_vswitch_does_not_have(number):
    with pytest.raises(DeclarationError, match=f"table Far: {number} is not a table number; they are 0 to 254"):
        Layout().stage("one", "the only one").table(number, "Far", "where?", miss=DROP)


def test_a_table_that_nothing_leads_to():
    layout = Layout()
    stage = layout.stage("one", "the only one")
    stage.table(0, "Classifier", "which port?", miss=DROP)
    stage.table(5, "Island", "how did we get here?", miss=DROP)
    with pytest.raises(DeclarationError, match="nothing leads to table Island"):
        layout.complete()


def test_a_table_that_leads_back():
    layout = Layout()
    stage = layout.stage("one", "the only one")
    stage.table(0, "Classifier", "which port?", leads_to=("Later",), miss=DROP)
    stage.table(5, "Later", "and now?", leads_to=("Classifier",), miss=DROP)
    with pytest.raises(DeclarationError, match="table Later leads back to Classifier"):
        layout.complete()


def test_a_table_that_leads_to_no_table():
    layout = Layout()
    layout.stage("one", "the only one").table(0, "Classifier", "which port?", leads_to=("Nirvana",), miss=DROP)
    with pytest.raises(DeclarationError, match="table Classifier leads to Nirvana, which is no table of stage one"):
        layout.complete()


def test_a_table_that_names_a_table_of_another_stage():
    layout = Layout()
    first, second = layout.stage("first", "comes first"), layout.stage("second", "comes second")
    first.table(0, "Classifier", "which port?", leads_to=("Later",), miss=DROP)
    second.table(5, "Later", "and now?", miss=DROP)
    with pytest.raises(DeclarationError, match="table Classifier leads to Later, which is no table of stage first"):
        layout.complete()


def test_a_table_that_is_declared_too_late_is_an_error():
    """Flows may already lead past it."""
    layout = Layout()
    stage = layout.stage("one", "the only one")
    stage.table(0, "Classifier", "which port?", miss=DROP)
    layout.complete()
    with pytest.raises(DeclarationError, match="table Late is declared after the layout was completed"):
        stage.table(5, "Late", "too late?", miss=DROP)


def test_a_complete_layout():
    layout = Layout()
    stage = layout.stage("one", "the only one")
    first = stage.table(0, "Classifier", "which port?", miss=Miss("all others: on", leads_to=ONWARD))
    later = stage.table(5, "Later", "and now?", miss=Miss("the end: to the uplink", (Output(3),)))
    layout.complete()
    assert first.flow(200, IN_PORT(1)).then(goto(later), why="on").actions == (Goto(5),)
    assert later.flow(0).drop(why="the end").actions == ()
    assert list(layout.miss_flows()) == [
        Flow(0, 0, (), (Goto(5),), "all others: on"),
        Flow(5, 0, (), (Output(3),), "the end: to the uplink"),
    ]


# Stages -------------------------------------------------------------------------------------------------------------


def test_a_stage_without_a_table_is_passed_over():
    layout = Layout()
    route = layout.stage("route", "where to")
    policy = layout.stage("policy", "is it allowed?")
    output = layout.stage("output", "out")
    first = route.table(70, "Forwarding", "where?", miss=Miss("on", leads_to=ONWARD))
    last = output.table(110, "Out", "by which port?", miss=DROP)
    assert goto(policy) == goto(output) == onward(first) == Goto(last.number)


def test_a_table_between_two_others_changes_neither():
    layout = Layout()
    route, policy, output = (layout.stage(name, f"{name}s packets") for name in ("route", "policy", "output"))
    first = route.table(70, "Forwarding", "where?", miss=Miss("on", leads_to=ONWARD))
    policy.table(80, "Policy", "is it allowed?", miss=Miss("not selected: on", leads_to=ONWARD))
    policy.table(81, "PolicyLog", "is it logged?", aside=True, miss=DROP)
    output.table(110, "Out", "by which port?", miss=DROP)
    assert goto(policy) == onward(first) == Goto(80)
    assert [flow.actions for flow in layout.miss_flows()] == [(Goto(80),), (Goto(110),), (), ()]


def test_a_stage_declared_twice():
    layout = Layout()
    layout.stage("route", "where to")
    with pytest.raises(DeclarationError, match="stage route is declared twice"):
        layout.stage("route", "again")


def test_a_table_of_an_earlier_stage_after_one_of_a_later_stage():
    layout = Layout()
    route, output = layout.stage("route", "where to"), layout.stage("output", "out")
    output.table(70, "Out", "by which port?", miss=DROP)
    with pytest.raises(DeclarationError, match="table Forwarding of stage route comes after tables of a later stage"):
        route.table(110, "Forwarding", "where?", miss=DROP)


def test_a_table_that_leads_to_an_earlier_stage():
    layout = Layout()
    route, output = layout.stage("route", "where to"), layout.stage("output", "out")
    route.table(70, "Forwarding", "where?", leads_to=(ONWARD,), miss=DROP)
    output.table(110, "Out", "by which port?", leads_to=(route,), miss=DROP)
    with pytest.raises(DeclarationError, match="table Out leads to route, which is not a later stage"):
        layout.complete()


def test_the_last_table_leads_nowhere():
    layout = Layout()
    layout.stage("output", "out").table(110, "Out", "by which port?", miss=Miss("on", leads_to=ONWARD))
    with pytest.raises(DeclarationError, match="table Out leads onward, but no table follows it"):
        layout.complete()


# Other numbers and addresses ------------------------------------------------------------------------------------------


def test_zones_that_cannot_be():
    layout = Layout()
    assert layout.zone(65520, "pods", "connections of Pods") == 65520
    with pytest.raises(DeclarationError, match="others overlaps pods"):
        layout.zone(65520, "others", "the same number")
    with pytest.raises(DeclarationError, match="pods is declared twice"):
        layout.zone(65521, "pods", "the same name")
    for number in (0, 65536):
        with pytest.raises(DeclarationError, match=f"host: {number} is not within 1 to 65535"):
            layout.zone(number, "host", "not ours")


def test_priorities_have_room_above_them():
    """For flows that are exceptions to those of the same priority."""
    layout = Layout()
    assert layout.priority(200, "normal", "the usual flows") == 200
    with pytest.raises(DeclarationError, match="close overlaps normal"):
        layout.priority(209, "close", "too close")
    with pytest.raises(DeclarationError, match="bottom overlaps miss"):
        layout.priority(0, "bottom", "below all others")
    assert layout.priority(210, "high", "exceptions") == 210


def test_meters_that_overlap():
    layout = Layout()
    layout.meter_range(range(1, 17), "pods", "of Pods")
    with pytest.raises(DeclarationError, match="host overlaps pods"):
        layout.meter_range(range(16, 18), "host", "of the host")
    with pytest.raises(DeclarationError, match=r"none: range\(5, 5\) is not within"):
        layout.meter_range(range(5, 5), "none", "an empty range")


def test_port_ranges_of_one_address_overlap_if_their_masks_do():
    layout = Layout()
    assert layout.port_range("Node IP", 0x4000, 0x5FFF, "pods", "of Pods").mask == (0x4000, 0xE000)
    with pytest.raises(DeclarationError, match="services overlaps pods"):
        layout.port_range("Node IP", 0x5000, 0x6FFF, "services", "of Services")
    with pytest.raises(DeclarationError, match="wide overlaps pods"):
        layout.port_range("Node IP", 0x6000, 0x8000, "wide", "its mask covers all ports")
    assert layout.port_range("gateway", 0x0400, 0x7FFF, "gateway", "another address").mask == (0, 0x8000)
    for first, last in ((5, 4), (0, 0x10000), (-1, 5)):
        with pytest.raises(DeclarationError, match=f"odd: {first} to {last} is not a range of ports"):
            layout.port_range("Node IP", first, last, "odd", "no ports")


def test_addresses_that_overlap_or_lack_a_family():
    layout = Layout()
    layout.address("one", "the first", IPv4Address("169.254.1.1"), IPv6Address("fd00::1"))
    with pytest.raises(DeclarationError, match="two overlaps one"):
        layout.address("two", "the second", IPv4Network("169.254.1.0/24"), IPv6Network("fd01::/64"))
    with pytest.raises(DeclarationError, match="three: it needs one address of each family"):
        layout.address("three", "only IPv4", IPv4Address("169.254.2.1"))


def test_reasons_that_the_agent_could_not_tell_apart():
    layout = Layout()
    assert layout.reason(b"reject", "reject", "answer it") == b"reject"
    with pytest.raises(DeclarationError, match="again has the userdata of reject"):
        layout.reason(b"reject", "again", "the same")
    with pytest.raises(DeclarationError, match="empty: the agent could not tell it"):
        layout.reason(b"", "empty", "nothing")


# Ours ---------------------------------------------------------------------------------------------------------------


def test_the_pipeline_explains_itself():
    """The docs and the rendered flows take their words from here."""
    for table in LAYOUT.tables.values():
        assert table.question.endswith((".", "?"))
        assert table.miss is None or table.miss.why
    assert all(stage.purpose for stage in LAYOUT.stages)
    assert all(field.purpose for field in LAYOUT.fields)


def test_the_numbers_of_the_design_notes_stay():
    """A reader of the notes recognises a dump."""
    numbers = {table.name: number for number, table in LAYOUT.tables.items()}
    named = {"Classifier": 0, "Uplink": 5, "NodePortFilter": 6, "Conntrack": 30, "ConntrackState": 31}
    named |= {"ServiceLB": 41, "L3Forwarding": 70, "ConntrackCommit": 105, "L2ForwardingOut": 110}
    assert named.items() <= numbers.items()


@pytest.mark.parametrize("family", Family)
def test_the_virtual_addresses_are_all_that_only_the_host_may_use(family):
    covered = {address for network in VIRTUAL_ADDRESSES[family] for address in network}
    assert covered == {address[family] for address in (NODE_PORT_ADDRESS, VIRTUAL_CLIENT, NODE_STAND_IN)}
