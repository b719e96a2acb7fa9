"""Peers that the API server lists late may have open connections, which must be compared with the policies."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from fed_agents import Fed, node, other_node
from test_enforced_policies import CLIENT, decoded, peer, pod, policy

from windlass.agent import policing
from windlass.agent.news import News
from windlass.agent.policing import Policing
from windlass.bench.service_states import LOCAL_NODE
from windlass.cluster.clusters import Namespaces
from windlass.cluster.objects import APIObject, Pod
from windlass.model.families import IPAddress
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config


class SlowList(Fed):
    """A source that has not listed the Pods of other Nodes until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = asyncio.Event()
        self.list(frozenset())
        self.asked = asyncio.Event()

    def list(self, namespaces: Namespaces) -> None:
        self._cluster = replace(self._cluster, listed_namespaces=namespaces)

    @property
    def has_found_pods(self) -> bool:
        return self.listed.is_set()

    async def find_pods(self, _namespaces: frozenset[str] | None) -> None:
        self.asked.set()
        await self.listed.wait()


async def test_a_peer_that_is_listed_late_is_compared_with_open_connections_and_a_new_pod_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(policing, "PATIENCE", 0.01)
    source = SlowList()
    news = News(source, tmp_path, lambda *_: None)
    followed = Policing(Config(node_name="node-1"), source, news, lambda *_: None)
    async with aclosing(news.arriving()) as arriving:

        async def needs_review(*objects: APIObject) -> bool:
            source.put(*objects)
            await anext(arriving)
            await followed.follow(news.take_up())
            followed.applied(NodeState(LOCAL_NODE))
            return followed.take_review()

        assert await needs_review(node(), pod("web"), policy("a", ingress=[{"from": [CLIENT]}]))
        assert await needs_review(peer("one", "172.16.2.1", app="client")), "a part of the list"
        assert not await needs_review(pod("new"))
        source.listed.set()
        assert await needs_review(peer("two", "172.16.2.2", app="client")), "the rest of the list"
        assert not await needs_review(peer("three", "172.16.2.3", app="client")), "a new Pod"


async def test_a_rule_that_denies_pods_denies_unknown_ones_until_all_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(policing, "PATIENCE", 0.01)
    source = SlowList()
    news = News(source, tmp_path, lambda *_: None)
    followed = Policing(Config(node_name="node-1"), source, news, lambda *_: None)
    unknown, listed = ip_address("172.16.2.9"), ip_address("172.16.2.2")
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}}
    red = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
    denial = {"action": "Deny", "from": [{"pods": {**red, **CLIENT}}]}
    metadata = {"name": "deny"}
    version, kind = "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"
    deny = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {**spec, "ingress": [denial]}}
    metadata = {"name": "default", "labels": {"team": "red"}}
    namespace = decoded({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    async with aclosing(news.arriving()) as arriving:

        async def admitted(*objects: APIObject) -> list[IPAddress]:
            source.put(*objects)
            await anext(arriving)
            await followed.follow(news.take_up())
            followed.applied(NodeState(LOCAL_NODE))
            allowed = followed.compiler.ingress.allowed
            return [address for address in (unknown, listed) if allowed("default/web", address)]

        other = other_node(2, "192.168.0.3")
        assert await admitted(namespace, node(), other, pod("web"), decoded(deny)) == []
        assert await admitted(peer("harmless", "172.16.2.2", app="server")) == [listed]
        source.list(frozenset({"default"}))
        assert await admitted() == [unknown, listed]
        assert followed.take_review()


class Listing(SlowList):
    """A source that lists all that is asked for, and knows a Pod that its watch has not delivered yet."""

    is_complete = False

    async def find_pods(self, namespaces: frozenset[str] | None) -> None:
        self.list(namespaces)
        self.put()
        self.asked.set()
        await self.listed.wait()

    async def find_pod(self, key: str) -> Pod | None:
        await asyncio.sleep(0)
        return pod(key.partition("/")[2], app="new")


async def test_an_earlier_change_does_not_take_back_what_is_listed_for_a_new_pod(tmp_path: Path):
    """The agent takes a change up, and then waits until a CNI ADD has found the peers of its Pod's policies."""
    source = Listing()
    news = News(source, tmp_path, lambda *_: None)
    followed = Policing(Config(node_name="node-1"), source, news, lambda *_: None)
    async with aclosing(news.arriving()) as arriving:
        subject = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "new"}}}}
        denial = {"action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "red"}}}]}
        spec = {"tier": "Admin", "priority": 1, "subject": subject, "ingress": [denial]}
        version, kind = "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"
        deny = decoded({"apiVersion": version, "kind": kind, "metadata": {"name": "deny"}, "spec": spec})
        spaces = [
            decoded({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}})
            for name, team in (("default", "blue"), ("red", "red"))
        ]
        source.put(node(), other_node(2, "192.168.0.3"), *spaces, deny)
        await anext(arriving)
        await followed.follow(news.take_up())
        source.put(pod("other"))
        await anext(arriving)
        earlier = news.take_up()
        adding = asyncio.create_task(followed.learn("default/web", ""))
        await source.asked.wait()
        await anext(arriving)
        following = asyncio.create_task(followed.follow(earlier))
        source.listed.set()
        await asyncio.gather(adding, following)
        followed.applied(NodeState(LOCAL_NODE))
        assert followed.compiler.ingress.allowed("default/web", ip_address("172.16.2.9"))


async def test_peers_that_a_cancelled_change_has_asked_for_are_late(tmp_path: Path):
    """For example, the container runtime no longer waits for a CNI ADD."""
    source = SlowList()
    news = News(source, tmp_path, lambda *_: None)
    followed = Policing(Config(node_name="node-1"), source, news, lambda *_: None)
    async with aclosing(news.arriving()) as arriving:
        source.put(node(), pod("web"), policy("a", ingress=[{"from": [CLIENT]}]))
        await anext(arriving)
        cancelled = asyncio.create_task(followed.follow(news.take_up()))
        await source.asked.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        source.listed.set()
        followed.take_review()
        source.put(peer("one", "172.16.2.1", app="client"))
        await anext(arriving)
        await followed.follow(news.take_up())
        assert followed.take_review()
