"""Progress reports a state of the cluster only when all work for it and for earlier states is done."""

from __future__ import annotations

from windlass.agent.progress import Progress
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import Service
from windlass.cluster.sources import ClusterChange


def change(number: int) -> ClusterChange:
    return ClusterChange(Cluster(str(number)), ChangeSet.of({Service: {f"default/s{number}"}}), (float(number),))


class Held:
    def __init__(self) -> None:
        self.changes: list[ClusterChange] = []
        self.progress = Progress(self.changes.append)

    @property
    def revisions(self) -> list[str]:
        return [change.cluster.revision for change in self.changes]


def test_a_state_is_complete_when_all_earlier_states_are():
    held = Held()
    first, second = held.progress.begin(change(1)), held.progress.begin(change(2))
    held.progress.complete(second)
    assert held.revisions == []
    held.progress.complete(first)
    assert held.revisions == ["2"]
    assert held.progress.is_idle


def test_changes_that_complete_together_are_reported_as_one():
    held = Held()
    first, second = held.progress.begin(change(1)), held.progress.begin(change(2))
    held.progress.complete(second)
    held.progress.complete(first)
    (together,) = held.changes
    assert together.changes.keys(Service) == {"default/s1", "default/s2"}
    assert together.triggered == (1.0, 2.0)


def test_a_change_that_needs_a_pass_is_complete_after_it():
    held = Held()
    failed, later = held.progress.begin(change(1)), held.progress.begin(change(2))
    held.progress.needs_pass(failed)
    held.progress.complete(failed)  # its own work
    held.progress.complete(later)
    assert held.revisions == []
    waiting = held.progress.waiting_for_pass()
    by_pass = held.progress.begin(change(2))
    held.progress.complete_all([*waiting, by_pass])
    assert held.revisions == ["2"]


def test_a_pass_does_not_complete_changes_that_arrived_after_it_began():
    held = Held()
    waiting = held.progress.waiting_for_pass()
    late = held.progress.begin(change(1))
    held.progress.needs_pass(late)
    by_pass = held.progress.begin(change(1))
    held.progress.complete_all([*waiting, by_pass])
    assert held.revisions == []
    held.progress.complete_all(held.progress.waiting_for_pass())
    assert held.revisions == ["1"]


def test_few_states_are_kept_while_passes_fail():
    """Passes may fail for days, and each state of the cluster is up to a hundred kilobytes."""
    held = Held()
    held.progress.needs_pass(held.progress.begin(change(0)))
    for number in range(1, 100):
        held.progress.complete(held.progress.begin(change(number)))
        if not number % 10:
            waiting = held.progress.waiting_for_pass()
            held.progress.needs_pass(held.progress.begin(change(number)))
    assert held.revisions == []
    assert len(held.progress._tickets) == 2
    held.progress.complete_all(waiting)
    assert held.revisions == ["90"], "the last pass had begun with this state"
    held.progress.complete_all(held.progress.waiting_for_pass())
    assert held.revisions == ["90", "99"]
    assert held.changes[0].changes.keys(Service) | held.changes[1].changes.keys(Service) == {
        f"default/s{number}" for number in range(100)
    }
