"""Expands the shorthands of the scenario format into plain documents: a Matrix of variants, and two kinds of tables.

A Matrix runs one scenario several times: each variant changes the traffic mode, the address families or the operating
systems of Nodes. A table of Probes states once what its rows share, a TruthTable says what reaches what. All other
modules see only plain documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_interface
from typing import TypeAlias, TypeVar

import yaml
from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from windlass.cluster.objects import field_sentence
from windlass.lab.scenarios import truth_tables
from windlass.lab.scenarios.directives import API_VERSION, is_of_the_lab
from windlass.lab.scenarios.objects import IPFamily, ProbeProtocol
from windlass.lab.scenarios.truth_tables import CellError, TruthTableSpec

Document: TypeAlias = Mapping[str, object]
S = TypeVar("S", bound=Struct)

MATRIX, PROBE = "Matrix", "Probe"
BOTH_FAMILIES = tuple(family.value for family in IPFamily)
MERGED = ("to", "expect")  # a row adds to these; every other field of a row replaces the shared one
_PROTOCOLS = frozenset(protocol.value for protocol in ProbeProtocol)
_ABSENT = object()


class Variant(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How one run of the scenario differs from the files as they are written."""

    traffic_mode: str = ""
    families: tuple[IPFamily, ...] = tuple(IPFamily)
    windows: tuple[str, ...] | None = None  # the Nodes that run Windows; all others run Linux
    config: dict[str, object] = {}  # further settings for the agents
    name: str = ""

    @property
    def settings(self) -> dict[str, object]:
        return {**({"trafficMode": self.traffic_mode} if self.traffic_mode else {}), **self.config}

    @property
    def family_names(self) -> tuple[str, ...]:
        return tuple(family.value for family in self.families)


class MatrixSpec(Struct, frozen=True, forbid_unknown_fields=True):
    variants: dict[str, Variant]

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError("variants: is empty; a Matrix needs at least one")


class ProbesSpec(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    each: dict[str, dict[str, object]]
    share: dict[str, object] = {}


class ExpansionError(ValueError):
    """A shorthand is malformed. The message names the object and the field."""


AS_WRITTEN = Variant()


def variants(documents: Iterable[Document]) -> tuple[Variant, ...]:
    """The variants that these documents ask for; none without a Matrix."""
    found = [document for document in documents if document.get("kind") == MATRIX]
    if len(found) > 1:
        raise ExpansionError("Matrix: a scenario may have only one")
    if not found:
        return ()
    spec = _converted(found[0], MatrixSpec)
    return tuple(replace(one, name=name) for name, one in spec.variants.items())


def expand(documents: Iterable[Document], variant: Variant, names: frozenset[str] = frozenset()) -> Iterator[Document]:
    """The plain documents of this variant; `names` are those of all variants."""
    documents = [*documents]
    for document in documents:
        match document.get("kind") if is_of_the_lab(document) else None:
            case "Matrix":
                variants([document])  # only validates it: the variant was chosen when the scenario was found
                if not any(map(_is_configuration, documents)):
                    yield _configured(_NO_CONFIGURATION, variant)
            case "Probes":
                yield from _rows(document, variant, names)
            case "TruthTable":
                yield from _cells(document, variant, names)
            case "Probe":
                yield from _one_probe(document, variant, names)
            case _:
                yield from _varied(document, variant)


# Probes -----------------------------------------------------------------------------------------------------------


def _rows(document: Document, variant: Variant, names: frozenset[str]) -> Iterator[Document]:
    spec = _converted(document, ProbesSpec)
    labels = {"labels": _mapping(document.get("metadata")).get("labels", {})}
    for name, row in spec.each.items():
        yield from _probes(name, labels, _merged(spec.share, row), variant, names)


def _cells(document: Document, variant: Variant, names: frozenset[str]) -> Iterator[Document]:
    spec, metadata = _converted(document, TruthTableSpec), _mapping(document.get("metadata"))
    try:
        for name, probe in truth_tables.probes(str(metadata.get("name", "")), spec):
            yield from _probes(name, {"labels": metadata.get("labels", {})}, probe, variant, names)
    except CellError as error:
        raise ExpansionError(f"TruthTable {metadata.get('name', '')}, spec.{error}") from None


def _one_probe(document: Document, variant: Variant, names: frozenset[str]) -> Iterator[Document]:
    """A single Probe may use the shorthands of a row as well."""
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield document  # malformed: the reader of plain documents reports it
        return
    for probe in _probes(str(metadata.get("name", "")), metadata, spec, variant, names):
        yield {**document, **probe}


def _probes(
    name: str, metadata: Document, spec: Document, variant: Variant, names: frozenset[str]
) -> Iterator[Document]:
    spec = dict(spec)
    only = spec.pop("only", None)
    if only is not None and variant.name not in _list(only, f"Probe {name}, spec.only"):
        return
    protocols = _list(spec.pop("protocols", [spec.get("protocol", "TCP")]), f"Probe {name}, spec.protocols")
    asked = _list(spec.pop("families", []), f"Probe {name}, spec.families")
    families = [family for family in variant.family_names if family in asked] if asked else [""]
    for protocol in protocols:
        for family in families:
            second = bool(family) and family != variant.family_names[0]
            plain = _chosen(spec, {protocol, family, variant.name}, names)
            if protocol != "TCP":
                plain["protocol"] = protocol
            if second and _names_one_target(_mapping(spec.get("to"))):
                plain["to"] = {**_mapping(plain["to"]), "family": family}
            if family or _is_within(plain, variant):
                yield {
                    "apiVersion": API_VERSION,
                    "kind": PROBE,
                    "metadata": {**metadata, "name": _name(name, protocol, protocols, family, second=second)},
                    "spec": plain,
                }


def _names_one_target(to: Document) -> bool:
    """Whether one target stands for both families, so that the probe must name the family of the address."""
    kinds = ("service", "loadBalancer", "externalIP", "pod", *(() if "address" in to else ("nodePort",)))
    return any(isinstance(to.get(kind), str) for kind in kinds)


def _name(name: str, protocol: str, protocols: list[str], family: str, *, second: bool) -> str:
    """Replaces `{protocol}` and `{family}`. Without them, each but the first protocol and family is appended."""
    suffixes = []
    if protocol != protocols[0] and "{protocol}" not in name:
        suffixes.append(protocol)
    if second and "{family}" not in name:
        suffixes.append(family)
    stem = name.replace("{protocol}", protocol.lower()).replace("{family}", family.lower())
    return "-".join([stem, *map(str.lower, suffixes)])


def _is_within(spec: Document, variant: Variant) -> bool:
    """Whether this variant has the family of the probe's target, if the probe names one."""
    to = _mapping(spec.get("to"))
    family = to.get("family")
    if family is None and (addressed := _family(to.get("address") or spec.get("sourceAddress"))):
        family = addressed
    return family is None or family in variant.family_names


def _chosen(value: Document, context: set[str], names: frozenset[str]) -> dict[str, object]:
    """Resolves mappings whose keys are protocols, families or variants to the value for this context, if any."""
    chosen = {key: _choice(item, context, names) for key, item in value.items()}
    return {key: item for key, item in chosen.items() if item is not _ABSENT}


def _choice(value: object, context: set[str], names: frozenset[str]) -> object:
    if not isinstance(value, dict):
        return value
    keys = value.keys()
    if keys and any(keys <= group for group in (_PROTOCOLS, frozenset(BOTH_FAMILIES), names)):
        return next((_choice(item, context, names) for key, item in value.items() if key in context), _ABSENT)
    return _chosen(value, context, names)


def _merged(shared: Document, row: Document) -> dict[str, object]:
    merged = {**shared, **row}
    for field in MERGED:
        if isinstance(shared.get(field), dict) and isinstance(row.get(field), dict):
            merged[field] = {**_mapping(shared[field]), **_mapping(row[field])}
    return merged


# Objects ------------------------------------------------------------------------------------------------------------


def _varied(document: Document, variant: Variant) -> Iterator[Document]:
    """The object as it is in this variant; nothing if the variant has none of its families."""
    kind = document.get("kind")
    if _is_configuration(document):
        document = _configured(document, variant)
    if kind == "Node" and variant.windows is not None:
        document = _with_system(document, variant)
    if variant.family_names == BOTH_FAMILIES:
        yield document
    elif variant.families and _own_families(document) & {*variant.family_names}:
        yield _in_families(document, variant.family_names)


def _own_families(document: Document) -> set[str]:
    """The families that the object declares; both if it declares none."""
    spec = _mapping(document.get("spec"))
    match document.get("kind"):
        case "EndpointSlice":
            return {str(document.get("addressType"))}
        case "Service":
            addresses = [spec.get("clusterIP"), *_list(spec.get("clusterIPs", []), "Service, spec.clusterIPs")]
            return {family for address in addresses if (family := _family(address))} or {*BOTH_FAMILIES}
        case "Action" if family := _family(_mapping(spec.get("addRoute")).get("to")):
            return {family}
    return {*BOTH_FAMILIES}


_NO_CONFIGURATION = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "windlass-config", "namespace": "kube-system"},
}


def _is_configuration(document: Document) -> bool:
    name = _mapping(document.get("metadata")).get("name")
    return document.get("kind") == "ConfigMap" and name == "windlass-config"


def _configured(document: Document, variant: Variant) -> Document:
    text = _mapping(document.get("data")).get("windlass.yaml", "")
    written = yaml.safe_load(text) if isinstance(text, str) else None
    return {
        **document,
        "data": {"windlass.yaml": yaml.safe_dump({**_mapping(written), **variant.settings}, sort_keys=False)},
    }


def _with_system(document: Document, variant: Variant) -> Document:
    metadata = _mapping(document.get("metadata"))
    system = "windows" if metadata.get("name") in (variant.windows or ()) else "linux"
    labels = {**_mapping(metadata.get("labels")), "kubernetes.io/os": system}
    return {**document, "metadata": {**metadata, "labels": labels}}


def _in_families(document: Document, families: tuple[str, ...]) -> Document:
    kept = _without(document, families)
    spec = _mapping(kept.get("spec"))
    if document.get("kind") != "Service" or "clusterIPs" not in spec:
        return kept
    # One family of a dual-stack Service remains: it becomes single-stack, with the address of that family.
    single = {key: value for key, value in spec.items() if key != "ipFamilyPolicy"}
    addresses = _list(single["clusterIPs"], "Service, spec.clusterIPs")
    return {**kept, "spec": {**single, "clusterIP": addresses[0] if addresses else "", "ipFamilies": [*families]}}


def _without(value: Document, families: tuple[str, ...]) -> dict[str, object]:
    return {key: _filtered(item, families) for key, item in value.items()}


def _filtered(value: object, families: tuple[str, ...]) -> object:
    """Removes from all lists the addresses and networks of other families, and objects that have such an address."""
    if isinstance(value, list):
        return [_filtered(item, families) for item in value if _item_family(item) in {None, *families}]
    return _without(value, families) if isinstance(value, dict) else value


def _item_family(item: object) -> str | None:
    if isinstance(item, dict):
        return _family(item.get("address") or item.get("ip"))
    return _family(item)


def _family(text: object) -> str | None:
    try:
        return f"IPv{ip_interface(text).version}" if isinstance(text, str) else None
    except ValueError:
        return None


# Details ------------------------------------------------------------------------------------------------------------


def _converted(document: Document, shape: type[S]) -> S:
    kind, metadata = document["kind"], _mapping(document.get("metadata"))
    try:
        return convert(document.get("spec", {}), shape)
    except ValidationError as error:
        raise ExpansionError(f"{kind} {metadata.get('name', '')}, spec: {field_sentence(str(error))}") from None


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ExpansionError(f"{where}: {value!r} is not a list of names")
    return value
