"""Makes a scenario from a seed: a random cluster, its changes from step to step, and the probes of each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from windlass.lab.fuzz import (
    cluster_steps,
    cluster_views,
    lasting_connections,
    lasting_denials,
    oracle,
    random_policy_probes,
    random_probes,
    random_queries,
)
from windlass.lab.fuzz.cluster_steps import RESTART, ClusterStep
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import Documents, WrittenDocument, directive
from windlass.lab.fuzz.drafts import Draft
from windlass.lab.fuzz.features import Features, option
from windlass.lab.fuzz.oracle import Query
from windlass.lab.fuzz.random_probes import History
from windlass.lab.scenarios.objects import ProbeProtocol

PROBES_AT_FIRST = 24
PROBES_LATER = 11
POLICY_PROBES = 24
OUTSIDE_PROBES = 6


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The file of one step."""

    name: str
    words: tuple[str, ...]
    documents: tuple[WrittenDocument, ...]


@dataclass(frozen=True, slots=True)
class RandomScenario:
    seed: int
    title: str
    command: str  # the command that makes the same scenario
    parts: tuple[ScenarioFile, ...]

    @property
    def name(self) -> str:
        return f"seed-{self.seed}"

    @property
    def probes(self) -> int:
        return sum(document["kind"] == "Probe" for part in self.parts for document in part.documents)

    def files(self) -> Iterator[tuple[str, str]]:
        for number, part in enumerate(self.parts):
            words = (f"{self.title}.", f"Reproduce: {self.command}", *part.words) if number == 0 else part.words
            comment = "".join(f"# {line}\n" for line in words)
            yield part.name, f"{comment}---\n{_yaml(part.documents)}"

    def write(self, folder: Path) -> tuple[Path, ...]:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.yaml"):
            old.unlink()
        for name, text in self.files():
            (folder / name).write_text(text)
        return tuple(sorted(folder.glob("*.yaml")))


def random_scenario(seed: int, features: Features) -> RandomScenario:
    """The same seed and features give the same scenario, byte for byte."""
    stages = cluster_steps.cluster_steps(seed, features)
    states = [stage.draft.by_identity() for stage in stages]
    views = [cluster_views.read(desired) for desired in states]
    history, rated = History(), set[Query]()
    patient = Dice(seed, "patience").number(0, len(stages) - 1)
    parts = []
    for number, (stage, view) in enumerate(zip(stages, views, strict=True)):
        before: Documents = states[number - 1] if number else {}
        random_probes.forget(history, view, remembers=stage.verb != RESTART)
        documents = [*_difference(before, states[number]), *_actions(stage)]
        keys = [service.key for service in stage.draft.services]
        if number == 0 and all(stage.verb != RESTART for stage in stages):
            documents += _lasting(seed, features, views, keys, history)
        dice, count = Dice(seed, "probes", number), PROBES_LATER if number else PROBES_AT_FIRST
        asked = keys + 3 * sorted(_touched(before, states[number]).intersection(keys))  # changed Services more often
        documents += random_probes.chosen(
            dice, view, count, asked, history, patient=number == patient or view.has_policies
        )
        if stage.draft.teams:
            dice = Dice(seed, "policy probes", number)
            documents += random_policy_probes.chosen(dice, view, POLICY_PROBES)
            documents += random_policy_probes.outside(Dice(seed, "probes outside", number), view, OUTSIDE_PROBES)
            if "denials" in features and number + 1 < len(stages):
                documents += lasting_denials.rated(Dice(seed, "denials", number), views[number:], rated)
        documents += _gone(dice, views[number - 1], view) if number else []
        name = f"{number}0-{'changes' if number else 'cluster'}.yaml"
        parts.append(ScenarioFile(name, stage.words, tuple(documents)))
    command = f"windlass lab fuzz --seed {seed} --count 1 {option(features)}".rstrip()
    return RandomScenario(seed, _title(seed, stages[0].draft), command, tuple(parts))


def _lasting(
    seed: int, features: Features, views: Sequence[ClusterView], services: Sequence[str], history: History
) -> Iterator[WrittenDocument]:
    if "holds" in features:
        yield from lasting_connections.held(Dice(seed, "holds"), views, services, history)
    if "rates" in features:
        yield from lasting_connections.rated(Dice(seed, "rates"), views, services, history)


def _gone(dice: Dice, before: ClusterView, after: ClusterView) -> Iterator[WrittenDocument]:
    """Probes to the addresses of Services that were deleted in this step."""
    clients = random_queries.clients(after)
    for key in sorted(before.services.keys() - after.services.keys()):
        service = before.services[key]
        client = dice.one(clients["nodes"] + clients["pods"])
        if service.is_served and service.spec.ports and service.spec.ports[0].protocol is not ProbeProtocol.SCTP:
            asked = random_queries.gone(after, client, service.cluster_ips[0], service.spec.ports[0])
            answer = oracle.predict(after, asked.query)
            if answer:
                yield random_probes.probe(dice, after, 90, asked, answer)


# Documents ------------------------------------------------------------------------------------------------------


def _difference(before: Documents, after: Documents) -> Iterator[WrittenDocument]:
    for kind, key in sorted(before.keys() - after.keys()):
        name = f"{kind}-{key.rpartition('/')[2]}-deletion".lower()
        yield directive("Delete", name, {"kind": kind, "name": key})
    yield from (document for identity, document in after.items() if before.get(identity) != document)


def _touched(before: Documents, after: Documents) -> frozenset[str]:
    """Services that are new or changed, or whose slices are."""
    keys = set()
    for (kind, key), document in after.items():
        if before.get((kind, key)) != document:
            owner = key.rpartition("-ipv")[0] if kind == "EndpointSlice" else key
            keys.add(owner)
    return frozenset(keys)


def _actions(stage: ClusterStep) -> Iterator[WrittenDocument]:
    if stage.verb:
        yield directive("Action", stage.verb.lower(), {stage.verb: stage.node})


def _title(seed: int, draft: Draft) -> str:
    families = " and ".join(str(family) for family in draft.families)
    machines = f"{len(draft.nodes)} Nodes, {len(draft.pods)} Pods, {len(draft.services)} Services" + (
        f", {len(draft.policies)} policies" if draft.teams else ""
    )
    return f"Seed {seed}: {draft.mode}, {families}, {machines}"


def _yaml(documents: Iterable[WrittenDocument]) -> str:
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, default_flow_style=None, width=120)


class _Plain(yaml.CSafeDumper):
    """Writes no anchors and aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (the signature of the base class)
        return True
