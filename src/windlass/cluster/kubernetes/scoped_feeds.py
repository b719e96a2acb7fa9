"""Follows one kind of objects in all namespaces, or, if it is on demand, in those that are needed: a feed for each.

If many namespaces are needed, one feed follows all of them: a connection for each would cost the server more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from windlass.cluster.clusters import Cluster, Namespaces, objects_of
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes.connections import APIConnection
from windlass.cluster.kubernetes.feeds import Feed, Recovery
from windlass.cluster.objects import APIObject
from windlass.cluster.sources import WatchHealth
from windlass.model.mappings import PersistentMap

MOST_FEEDS = 16  # namespaces that are followed one by one
# After more, fewer: to change to a feed for all lists all objects, and until then those of a new namespace are missing.
_MOST_AGAIN = MOST_FEEDS // 2


class ScopedFeeds:
    """Objects of former namespaces stay until those of the present namespaces are listed."""

    def __init__(
        self,
        kind: WatchedKind[APIObject],
        node_name: str,
        changed: Callable[[], None],
        last_good: Callable[[], Cluster | None],
        member: str,
    ) -> None:
        """`changed` is called after each change of the objects. `member`: the name of this kind in the Cluster."""
        self.kind = kind
        self._last_good = last_good
        self._member = member
        self._node_name = node_name
        self._changed = changed
        self._scopes: frozenset[str] = frozenset()  # namespaces that are followed; "" stands for all
        self._feeds: dict[str, Feed] = {}  # by scope; former ones stay until all needed ones are listed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._using: tuple[APIConnection, Recovery] | None = None  # while connected
        self._is_begun = False  # whether objects were ever needed
        self.listed: Namespaces = frozenset()  # namespaces all of whose objects are in the last snapshot
        self._saved: Namespaces = frozenset()  # the same of an earlier agent, until all needed ones are listed
        self._moved: set[str] = set()  # keys whose feed was started or ended
        self._objects: PersistentMap[APIObject] = PersistentMap()
        if not kind.is_on_demand:
            self.need(None)

    def need(self, namespaces: Namespaces) -> None:
        """Follow the objects in these namespaces, and in no others. None: in all."""
        most = _MOST_AGAIN if "" in self._scopes else MOST_FEEDS
        scopes = frozenset({""}) if namespaces is None or len(namespaces) > most else namespaces
        if scopes == self._scopes:
            return
        self._scopes = scopes
        # A long list takes seconds. Until it is read, the objects that an earlier agent saved are used: the flows for
        # them are still in the switch, and would be removed.
        saved = self._last_good() if self.kind.is_on_demand and not self._is_begun else None
        self._is_begun = True
        objects: Mapping[str, APIObject] = {}
        if saved is not None:
            objects, self._saved = objects_of(saved, self._member), saved.listed_namespaces
            if "" not in scopes:  # the objects of other namespaces are not used
                self._saved = scopes if self._saved is None else self._saved & scopes
        for scope in scopes - self._feeds.keys():
            feed = self._feeds[scope] = Feed(self.kind, self._node_name, self._changed, scope, self._remembered)
            feed.store.remember({key: one for key, one in objects.items() if scope in {"", key.partition("/")[0]}})
            self._start(scope)
        self._changed()

    @property
    def needed(self) -> list[Feed]:
        """The feeds of the objects that are needed now."""
        return [self._feeds[scope] for scope in self._scopes]

    @property
    def is_listed(self) -> bool:
        """Whether all objects that are needed have been read."""
        return all(feed.is_listed for feed in self.needed)

    @property
    def watches(self) -> Iterator[WatchHealth]:
        """One entry for all feeds together, if there is any: that of the feed that was silent for longest."""
        feeds = self.needed
        if feeds:
            heard = [feed.heard for feed in feeds if feed.heard is not None]
            restarts: Counter[str] = Counter()
            for feed in feeds:
                restarts.update(feed.restarts)
            yield WatchHealth(
                self.kind.watch_name or self.kind.resource, time.monotonic() - min(heard) if heard else None, restarts
            )

    def connect(self, connection: APIConnection, recovery: Recovery) -> None:
        self._using = connection, recovery
        for scope in self._feeds:
            self._start(scope)

    async def disconnect(self) -> None:
        """The objects stay."""
        tasks, self._tasks, self._using = [*self._tasks.values()], {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshot(self) -> tuple[Mapping[str, APIObject], frozenset[str]]:
        """All objects as an immutable mapping, and the keys of those that changed since the last snapshot."""
        if not self.kind.is_on_demand:
            return self._feeds[""].store.snapshot()
        if self.is_listed:
            self._saved = frozenset()
            for scope in self._feeds.keys() - self._scopes:
                self._end(scope)
        self.listed = self._find_listed()
        changed, self._moved = self._moved, set()
        for feed in self._feeds.values():
            changed |= feed.store.changed
            feed.store.changed = set()
        if changed:
            self._objects = self._objects.updated({key: self._find(key) for key in changed})
        return self._objects, frozenset(changed)

    def take_triggers(self) -> list[float]:
        """The trigger times of the changes since the last call."""
        return [when for feed in self._feeds.values() for when in feed.take_triggers()]

    def check(self) -> None:
        """Raise the error that ended a feed. No feed ends without an error."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    def _find_listed(self) -> Namespaces:
        listed = frozenset(scope for scope, feed in self._feeds.items() if feed.is_listed)
        return None if "" in listed or self._saved is None else listed | self._saved

    def _remembered(self) -> Mapping[str, APIObject] | None:
        """As for `Feed`."""
        saved = self._last_good()
        return None if saved is None else objects_of(saved, self._member)

    def _find(self, key: str) -> APIObject | None:
        """From a needed namespace, or else from a former one, whose feed stays until the needed ones are listed."""
        for scope in (*self._scopes, *(self._feeds.keys() - self._scopes)):
            if (one := self._feeds[scope].store.objects.get(key)) is not None:
                return one
        return None

    def _start(self, scope: str) -> None:
        if self._using and scope not in self._tasks:
            task = asyncio.create_task(self._feeds[scope].follow(*self._using))
            task.add_done_callback(lambda _: self._changed())
            self._tasks[scope] = task

    def _end(self, scope: str) -> None:
        if task := self._tasks.pop(scope, None):
            task.cancel()
        self._moved |= self._feeds.pop(scope).store.objects.keys()
