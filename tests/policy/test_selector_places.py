"""The index finds every Pod that a selector matches; it may find more, never less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.policy.rules import PodPeers
from windlass.policy.selector_places import PlaceIndex, places_of_pod, places_of_selector
from windlass.policy.selectors import LabelRequirement, Selector

words = st.sampled_from(["a", "b", "c"])
requirements = st.builds(
    LabelRequirement,
    words,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(words, min_size=1, max_size=2).map(tuple),
)
selectors = st.lists(requirements, max_size=3).map(lambda some: Selector(tuple(some)))


@given(selectors, st.none() | words, words, st.dictionaries(words, words))
def test_a_selector_and_a_matching_pod_share_a_place(
    selector: Selector, named: str | None, namespace: str, labels: dict[str, str]
):
    peers = PodPeers(named, pods=selector)
    pods, selecting = PlaceIndex(), PlaceIndex()
    pods.add("pod", places_of_pod(namespace, labels.items()))
    selecting.add("policy", places_of_selector(peers))
    if named in {None, namespace} and selector.matches(labels):
        assert "pod" in pods.at(places_of_selector(peers))
        assert "policy" in selecting.at(places_of_pod(namespace, labels.items()))


def test_removed_members_are_not_found():
    index = PlaceIndex()
    places = places_of_pod("a", [("x", "y")])
    index.add("pod", places)
    index.remove("pod", places)
    assert not index.at(places)
