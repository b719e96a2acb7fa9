"""Notifications of the kernel about changes of interfaces and of the nftables table of Services."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from windlass.host.linux import rtnetlink
from windlass.host.linux.netlink import NETLINK_NETFILTER, Netlink, as_text, attributes
from windlass.host.linux.route_messages import read_route
from windlass.host.protocol import OTHER_INTERFACES

_GROUPS = rtnetlink.GROUP_LINKS | rtnetlink.GROUP_ADDRESSES | rtnetlink.GROUP_ROUTES

_ROUTES = frozenset((rtnetlink.RTM_NEWROUTE, rtnetlink.RTM_DELROUTE))

_GROUP_NFTABLES = 1 << 6
_NFTABLES = 10 << 8
# Removed tables, added and removed chains and rules. Set elements are left out: they change often, mostly by Windlass.
_RULESET_CHANGES = frozenset(_NFTABLES | kind for kind in (2, 3, 5, 6, 8))
_TABLE_NAME = 1  # the attribute in each of these
_NETFILTER_HEADER = 4


class InterfaceWatch:
    """A socket that becomes readable after a change; `changed` says of which interfaces."""

    def __init__(self, netlink: Netlink, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._netlink = Netlink(_GROUPS)
        found = [rtnetlink.link(netlink, name) for name in self._names]
        self.gone: set[str] = set()
        self._known = {link.index: link.name for link in found if link is not None}

    def fileno(self) -> int:
        return self._netlink.fileno()

    def close(self) -> None:
        self._netlink.close()

    def changed(self) -> frozenset[str]:
        """The names of our interfaces that have changed since the last call; see `Host.watch`.

        Routes that this process has added or deleted itself do not count.
        """
        changed = set()
        try:
            for kind, body, is_own in self._netlink.announced():
                name = None if is_own and kind in _ROUTES else self._subject(kind, body)
                if name is not None:
                    changed.add(name)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return self._names  # messages were lost: any interface may have changed
        return frozenset(changed)

    def _subject(self, kind: int, body: bytes) -> str | None:
        if kind in {rtnetlink.RTM_NEWLINK, rtnetlink.RTM_DELLINK}:
            link = rtnetlink.read_link(body)
            if link.name not in self._names:
                return None
            self._known[link.index] = link.name
            (self.gone.add if kind == rtnetlink.RTM_DELLINK else self.gone.discard)(link.name)
            return link.name
        if kind in {rtnetlink.RTM_NEWADDR, rtnetlink.RTM_DELADDR}:
            name = self._known.get(rtnetlink.index_of_address(body))
            return OTHER_INTERFACES if name is None and rtnetlink.is_global_address(body) else name
        if kind in _ROUTES:
            route = read_route(body)
            indexes = frozenset() if route is None else route.indexes
            return next((name for index, name in self._known.items() if index in indexes), None)
        return None


class TableWatch:
    """A socket that becomes readable after a change of nftables; `changed` says whether this table has changed."""

    def __init__(self, _: Netlink, table: str, subject: str) -> None:
        self._table = table
        self._subject = subject  # the name to report
        self._netlink = Netlink(_GROUP_NFTABLES, NETLINK_NETFILTER)

    def fileno(self) -> int:
        return self._netlink.fileno()

    def close(self) -> None:
        self._netlink.close()

    def changed(self) -> frozenset[str]:
        try:
            ours = {self._is_ours(kind, body) for kind, body, _ in self._netlink.announced()}
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            ours = {True}  # messages were lost
        return frozenset((self._subject,)) if True in ours else frozenset()

    def _is_ours(self, kind: int, body: bytes) -> bool:
        if kind not in _RULESET_CHANGES:
            return False
        return as_text(attributes(body, _NETFILTER_HEADER).get(_TABLE_NAME, b"")) == self._table
