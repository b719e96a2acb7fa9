"""The random cluster of a seed, and its changes from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.lab.fuzz import random_changes, random_clusters, random_policies
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.drafts import Draft
from windlass.lab.fuzz.features import Features

RESTART = "restartSwitch"


@dataclass(frozen=True, slots=True)
class ClusterStep:
    """The cluster at one step, a description of its changes, and an action on a Node."""

    draft: Draft
    words: tuple[str, ...] = ()
    verb: str = ""
    node: str = ""


def cluster_steps(seed: int, features: Features) -> list[ClusterStep]:
    """The same seed and features give the same steps."""
    stages = [ClusterStep(random_clusters.cluster(seed, features))]
    features = random_clusters.possible(stages[0].draft.nodes, features)
    dice = Dice(seed, "changes")
    for _ in range(dice.number(1, 3) if "changes" in features else 0):
        before = stages[-1].draft
        draft, words = random_changes.changed(dice, before, features)
        draft, of_policies = random_policies.changed(Dice(seed, "policy changes", len(stages)), draft)
        words += of_policies
        verb = dice.weighted({"": 0.65, "killAgent": 0.2, "restartAgent": 0.1, RESTART: 0.05})
        node = dice.one([node for node in draft.nodes if node in before.nodes]).name  # not a Node that just started
        if verb and ("switches" if verb == RESTART else "agents") in features:
            stages.append(ClusterStep(draft, (*words, f"{verb}: {node}"), verb, node))
        else:
            stages.append(ClusterStep(draft, tuple(words)))
    return stages
