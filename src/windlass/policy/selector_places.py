"""An index that narrows which Pods a selector may match, so that not all Pods are compared with all policies.

A selector that requires a label and the Pods that have it share the place of that label. Whether the selector matches
such a Pod must still be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.policy.rules import PodPeers

Label = tuple[str, str]
Place = tuple[str | None, Label | None]  # a namespace and a label; None: any


def places_of_selector(peers: PodPeers) -> list[Place]:
    """Every Pod that the selector matches is at one of these places."""
    return [(peers.namespace, label) for label in peers.pods.labels_of_a_match() or (None,)]


def places_of_pod(namespace: str, labels: Iterable[Label]) -> list[Place]:
    """Every selector that matches such a Pod is at one of these places."""
    places: list[Place] = [(namespace, None), (None, None)]
    for label in labels:
        places += [(namespace, label), (None, label)]
    return places


class PlaceIndex:
    """The members at each place, in the order in which they were added."""

    def __init__(self) -> None:
        self._members: dict[Place, dict[str, None]] = {}

    def add(self, member: str, places: Iterable[Place]) -> None:
        for place in places:
            self._members.setdefault(place, {})[member] = None

    def remove(self, member: str, places: Iterable[Place]) -> None:
        for place in places:
            self._members[place].pop(member, None)
            if not self._members[place]:
                del self._members[place]

    def at(self, places: Iterable[Place]) -> dict[str, None]:
        found: dict[str, None] = {}
        for place in places:
            found.update(self._members.get(place, {}))
        return found
