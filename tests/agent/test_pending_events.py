"""Which Events about unusable objects are written, when and how often."""

from __future__ import annotations

from windlass.agent.pending_events import RENEWED, SETTLED, PendingEvents
from windlass.cluster.objects import Problem, Reference


def problem(name: str, sentence: str = "it is wrong", kind: str = "Service") -> Problem:
    return Problem(f"{kind} {name}", sentence, Reference(kind, name))


def all_written(pending: PendingEvents, now: float) -> list[str]:
    found = []
    while (one := pending.due(now)) is not None:
        pending.written(one, now)
        found.append(one.where)
    return found


def test_each_problem_has_one_event_when_it_appears():
    pending = PendingEvents("node-1")
    pending.update([problem("web")], 0.0)
    assert all_written(pending, SETTLED) == ["Service web"]
    pending.update([problem("web"), problem("shop")], 100.0)
    assert all_written(pending, 200.0) == ["Service shop"]
    # A problem with another sentence is a new one. One that was corrected and is back has a new Event.
    pending.update([problem("web", "it is otherwise wrong")], 300.0)
    assert all_written(pending, 400.0) == ["Service web"]
    pending.update([problem("shop"), problem("web", "it is otherwise wrong")], 500.0)
    assert all_written(pending, 600.0) == ["Service shop"]


def test_an_event_is_written_again_while_its_problem_lasts():
    pending = PendingEvents("node-1")
    pending.update([problem("web")], 0.0)
    pending.update([problem("web"), problem("shop")], 100.0)
    assert sorted(all_written(pending, 200.0)) == ["Service shop", "Service web"]
    assert pending.seconds_until_due(200.0, most=2 * RENEWED) == RENEWED
    assert all_written(pending, 199.0 + RENEWED) == []
    assert sorted(all_written(pending, 200.0 + RENEWED)) == ["Service shop", "Service web"]
    pending.update([problem("shop")], 300.0 + RENEWED)
    assert all_written(pending, 200.0 + 2 * RENEWED) == ["Service shop"]


def test_a_short_problem_has_no_event():
    pending = PendingEvents("node-1")
    pending.update([problem("web")], 0.0)
    assert pending.due(SETTLED - 0.1) is None
    pending.update([], SETTLED - 0.1)
    assert pending.due(SETTLED) is None


def test_when_the_next_event_is_due():
    pending = PendingEvents("node-1")
    assert pending.seconds_until_due(0.0, most=300.0) == 300.0
    pending.update([problem("web")], 10.0)
    pending.update([problem("web"), problem("shop")], 12.0)
    assert pending.seconds_until_due(12.0, most=300.0) == SETTLED - 2.0
    assert pending.seconds_until_due(100.0, most=300.0) == 0.0
    assert all_written(pending, 10.0 + SETTLED) == ["Service web"]


def test_each_agent_writes_about_its_own_node_only():
    pending = PendingEvents("node-1")
    pending.update([problem("node-1", kind="Node"), problem("node-2", kind="Node"), Problem("a.yaml", "broken")], 0.0)
    assert all_written(pending, SETTLED) == ["Node node-1"]


def test_agents_write_their_events_in_different_order():
    problems = [problem(f"web-{number}") for number in range(100)]
    first = set()
    for _ in range(20):
        pending = PendingEvents("node-1")
        pending.update(problems, 0.0)
        first.add(pending.due(SETTLED))
    assert len(first) > 1
