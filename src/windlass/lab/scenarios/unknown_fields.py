"""Names the fields of policies that the API does not have: they are ignored, and often they are misspelled.

`kubectl apply` refuses such fields, and an API server removes them. Metadata and status are not examined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache

import msgspec
from msgspec.inspect import StructType, Type, UnionType, VarTupleType

from windlass.cluster.objects import kind_name
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy

_STRUCTS = {kind_name(struct): struct for struct in (NetworkPolicy, ClusterNetworkPolicy)}
_OF_EVERY_OBJECT = ("apiVersion", "kind", "metadata", "status")


def unknown_fields(document: Mapping[str, object]) -> Iterator[str]:
    """A sentence for each one; none if the document is no policy."""
    struct = _STRUCTS.get(str(document.get("kind")))
    if struct is not None:
        written = {name: value for name, value in document.items() if name not in _OF_EVERY_OBJECT}
        yield from _unknown(written, _type_of(struct), "")


def suggestion(word: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """` (did you mean from?)`, or nothing if no known word is similar."""
    by_lower_case = {one.lower(): one for one in known}
    similar = get_close_matches(word.lower(), by_lower_case, 1, similarity)
    return f" (did you mean {by_lower_case[similar[0]]}?)" if similar else ""


@cache
def _type_of(struct: type[msgspec.Struct]) -> Type:
    return msgspec.inspect.type_info(struct)


def _unknown(value: object, shape: Type, place: str) -> Iterator[str]:
    match shape, value:
        case UnionType(), _:
            for one in shape.types:
                yield from _unknown(value, one, place)
        case VarTupleType(), list():
            for number, item in enumerate(value):
                yield from _unknown(item, shape.item_type, f"{place}[{number}]")
        case StructType(), dict():
            known = {field.encode_name: field.type for field in shape.fields}
            for name, part in value.items():
                where = f"{place}.{name}" if place else str(name)
                if name in known:
                    yield from _unknown(part, known[name], where)
                else:
                    yield f"{where}: there is no such field{suggestion(str(name), known)}; it is ignored"
