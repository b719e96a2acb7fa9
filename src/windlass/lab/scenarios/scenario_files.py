"""Reads scenarios: a path becomes steps of typed objects, or errors that name file, object and field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass.cluster import policies
from windlass.cluster.objects import type_sentence
from windlass.cluster.policies import policy_in
from windlass.lab.scenarios import desired_states, documents, expansions, segments, targets
from windlass.lab.scenarios.directives import (
    DIRECTIVE_KINDS,
    Deletion,
    Directive,
    ExternalHost,
    Probe,
    StepAction,
    is_of_the_lab,
)
from windlass.lab.scenarios.expansions import AS_WRITTEN, ExpansionError, Variant
from windlass.lab.scenarios.objects import CLUSTER_SCOPED, KUBERNETES_KINDS, KubernetesObject
from windlass.lab.scenarios.redefinitions import redefinitions
from windlass.lab.scenarios.unknown_fields import suggestion, unknown_fields

SUFFIXES = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class Step:
    """One file: the lab applies objects, performs actions, waits for convergence, then sends the probes."""

    name: str
    objects: tuple[KubernetesObject, ...] = ()
    hosts: tuple[ExternalHost, ...] = ()
    deletes: tuple[Deletion, ...] = ()
    actions: tuple[StepAction, ...] = ()
    probes: tuple[Probe, ...] = ()

    @property
    def directives(self) -> tuple[Directive, ...]:
        return (*self.hosts, *self.deletes, *self.actions, *self.probes)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]
    warnings: tuple[str, ...] = ()

    def states(self) -> Iterator[tuple[Step, desired_states.DesiredState]]:
        """Each step with the cluster that it asks for."""
        desired = desired_states.DesiredState()
        for step in self.steps:
            desired = desired.after(step.objects, step.hosts, step.deletes)
            yield step, desired

    @property
    def last_state(self) -> desired_states.DesiredState:
        return [*self.states()][-1][1]


class ScenarioError(ValueError):
    """The scenario cannot be read: one problem per line, each with file, object and field."""


@dataclass(frozen=True, slots=True)
class ScenarioFiles:
    """The files of one scenario in order, and the variant if it has a Matrix."""

    name: str
    files: tuple[Path, ...]
    variant: Variant = AS_WRITTEN
    variant_names: frozenset[str] = frozenset()

    def read(self) -> Scenario:
        problems: list[str] = []
        warnings: list[str] = []
        steps = tuple(_typed(file, self.documents(file, problems, warnings), problems, warnings) for file in self.files)
        if self.variant is AS_WRITTEN and not any(step.directives for step in steps):  # manifests, not a scenario
            warnings += redefinitions((f"{one.kind} {one.key}", one.raw) for step in steps for one in step.objects)
        scenario = Scenario(self.name, steps, tuple(warnings))
        if not problems:
            problems.extend(_broken_references(scenario))
        if problems:
            raise ScenarioError("\n".join(problems))
        return scenario

    def documents(
        self, file: Path, problems: list[str], warnings: list[str] | None = None
    ) -> list[Mapping[str, object]]:
        """The documents of a file in the plain format, with shorthands expanded. `warnings`: see `documents_in`."""
        written = documents.documents_in(file.read_bytes(), file.name, problems, warnings)
        try:
            return [*expansions.expand(written, self.variant, self.variant_names)]
        except ExpansionError as error:
            problems.append(f"{file.name}: {error}")
            return []


def find(path: Path) -> tuple[ScenarioFiles, ...]:
    """The scenarios below `path`, in order of name. `FOLDER/VARIANT` is that variant of the folder's Matrix."""
    if path.is_file():
        return tuple(_variants(path.stem, (path,)))
    if not path.exists() and path.parent.is_dir() and (files := _steps_in(path.parent)):
        chosen = [found for found in _variants(path.parent.name, files) if found.variant.name == path.name]
        if chosen:
            return tuple(chosen)
    if not path.is_dir():
        raise ScenarioError(f"{path}: no such file or directory")
    found = tuple(
        variant
        for folder in (path, *sorted(p for p in path.rglob("*") if p.is_dir()))
        if (files := _steps_in(folder))
        for variant in _variants(_name_of(folder, path), files)
    )
    if not found:
        raise ScenarioError(f"{path}: there is no YAML file in it or in its folders")
    return found


def find_one(path: Path) -> ScenarioFiles:
    """The only scenario at `path`."""
    found = find(path)
    if len(found) != 1:
        names = ", ".join(one.name for one in found)
        raise ScenarioError(f"{path}: contains {len(found)} scenarios; name one of {names}")
    return found[0]


# Files ----------------------------------------------------------------------------------------------------------


def _variants(name: str, files: Sequence[Path]) -> Iterator[ScenarioFiles]:
    asked: tuple[Variant, ...] = ()
    # A Matrix is in the first file, so that finding scenarios does not read all files.
    if b"kind: Matrix" in files[0].read_bytes():
        with suppress(ExpansionError):  # read() reports it
            asked = expansions.variants(documents.documents_in(files[0].read_bytes(), files[0].name, [], []))
    if not asked:
        yield ScenarioFiles(name, tuple(files))
    names = frozenset(variant.name for variant in asked)
    for variant in asked:
        yield ScenarioFiles(f"{name}/{variant.name}", tuple(files), variant, names)


def _name_of(folder: Path, root: Path) -> str:
    return root.resolve().name if folder == root else folder.relative_to(root).as_posix()


def _steps_in(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file()))


def _typed(file: Path, documents: Sequence[Mapping[str, object]], problems: list[str], warnings: list[str]) -> Step:
    objects: list[KubernetesObject] = []
    directives: list[Directive] = []
    for raw in documents:
        kind = raw.get("kind")
        known = KUBERNETES_KINDS.get((str(raw.get("apiVersion")), str(kind)))
        try:
            if known is not None:
                objects.append(KubernetesObject(str(kind), msgspec.convert(raw, known), raw))
                warnings += [f"{file.name}: {title(raw)}, {field}" for field in unknown_fields(raw)]
            elif str(kind) in DIRECTIVE_KINDS and is_of_the_lab(raw):
                directives.append(msgspec.convert(raw, DIRECTIVE_KINDS[str(kind)]))
            elif isinstance(kind, str) and kind:
                warnings.append(f"{file.name}: {_ignored(kind, raw)}")
            else:
                problems.append(f"{file.name}: {title(raw)}, kind: is missing")
        except msgspec.ValidationError as error:
            problems.append(f"{file.name}: {title(raw)}, {_sentence(error)}")
    not_enforced = policies.summary(filter(None, (policy_in(one.raw) for one in objects)))
    warnings += [f"{file.name}: {sentence}" for sentence in not_enforced]
    return Step(
        file.name,
        tuple(objects),
        tuple(d for d in directives if isinstance(d, ExternalHost)),
        tuple(d for d in directives if isinstance(d, Deletion)),
        tuple(d for d in directives if isinstance(d, StepAction)),
        tuple(d for d in directives if isinstance(d, Probe)),
    )


# Objects --------------------------------------------------------------------------------------------------------


def title(raw: Mapping[str, object]) -> str:
    """`Pod default/web-0`, or the best title for a malformed object."""
    kind, metadata = raw.get("kind", "an object"), raw.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return f"{kind} without a name"
    namespaced = any(kind == known for _, known in KUBERNETES_KINDS) and kind not in CLUSTER_SCOPED
    namespace = f"{metadata.get('namespace') or 'default'}/" if namespaced else ""
    return f"{kind} {namespace}{metadata['name']}"


def _ignored(kind: str, raw: Mapping[str, object]) -> str:
    read = [version for version, known in KUBERNETES_KINDS if known == kind]
    kinds = {known for _, known in KUBERNETES_KINDS}
    why = f"only {read[0]} is read" if read else f"this kind is not read{suggestion(kind, kinds, 0.85)}"
    return f"{title(raw)} ({raw.get('apiVersion', 'no apiVersion')}) is ignored: {why}"


def _sentence(error: msgspec.ValidationError) -> str:
    """`spec.ports[0].port: 0 is not a port`: our own messages begin with the field, those of msgspec end with it."""
    text, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if isinstance(error.__cause__, ValueError) and re.match(r"[\w.\[\]]+: ", text):
        return f"{field}.{text}" if field else text
    unknown = re.fullmatch(r"Object (contains unknown|missing required) field `(\w+)`", text)
    if unknown:
        field = f"{field}.{unknown[2]}" if field else unknown[2]
        text = "there is no such field" if unknown[1] == "contains unknown" else "is missing"
    text = type_sentence(text).replace("`", "")
    return f"{field}: {text}" if field else text


def _broken_references(scenario: Scenario) -> Iterator[str]:
    """References to something that does not exist, found before anything is started."""
    earlier = desired_states.DesiredState()
    for step, desired in scenario.states():
        for sentence in (
            *desired.problems(earlier, step.deletes),
            *segments.problems(desired),
            *_duplicates(step.probes),
        ):
            yield f"{step.name}: {sentence}"
        for action in step.actions:
            if action.spec.node and action.spec.node not in desired.nodes:
                where = f"{step.name}: Action {action.metadata.name}, spec.{action.spec.verb}"
                yield f"{where}: there is no Node {action.spec.node}"
        for probe in step.probes:
            try:
                destination = targets.resolve(probe, desired, desired_states.placeholder_addresses(desired))
                targets.seen_address(probe, destination, desired)
            except targets.UnresolvedError as error:
                yield f"{step.name}: Probe {probe.name}, {error}"
        earlier = desired


def _duplicates(probes: tuple[Probe, ...]) -> Iterator[str]:
    counted = Counter(probe.name for probe in probes)
    yield from (
        f"Probe {name}: this step has {count} probes of this name" for name, count in counted.items() if count > 1
    )
