"""Gives the uplink of this Node to the bridge, and keeps a queue of what the host should hold.

A change of a few items waits at most for the request in progress. A problem with one item is reported
and does not stop the others; the host is compared as a whole after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from windlass.agent.areas import Area, Report
from windlass.host.plans import HostChange, HostNames, HostPlan, Item, diff
from windlass.host.protocol import Adopted, Host, HostError
from windlass.host.services import ItemClaims
from windlass.model.families import IPAddress
from windlass.program import Owner
from windlass.switch.bridge_differences import has_uplink
from windlass.switch.bridge_specs import BridgeSpec
from windlass.switch.bridges import add_uplink, remove_uplink
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

Done = asyncio.Future[None]
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Hosting:
    """What the host should hold, by owner; `work` brings it there."""

    _host: Host
    _report: Report
    _look_again: Callable[[], object]
    using: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the host's items, addresses or uplink change
    _names: HostNames | None = None
    _shared: HostPlan = field(default_factory=HostPlan)  # items that belong to no single owner
    _claims: ItemClaims = field(default_factory=ItemClaims)
    _desired: set[Item] = field(default_factory=set)  # the items of all owners together
    _owed: set[Item] = field(default_factory=set)  # items that came or went since the host was last changed
    _owes_everything: bool = False
    _waiting: list[Done] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the uplink -----------------------------------------------------------------------------------------------

    async def take_uplink(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> None:
        """The NIC becomes a port of the bridge, and the bridge interface gets its addresses and routes.

        After a failure the NIC leaves the bridge only if the host says that the NIC holds all Node IPs.
        A cancelled caller still waits for the end, because half-way the Node does not answer.
        """
        taking = asyncio.ensure_future(self._take_uplink(database, spec, node_ips))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.gather(taking, return_exceptions=True)
            raise

    async def _take_uplink(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> None:
        async with self.using:
            away = database.view.problem
            if away and await self._host.uplink.needs_wire(spec.uplink, spec.name, node_ips):
                raise SwitchUnreachableError(away)  # the view may be out of date: the NIC works, and stays as it is
            try:
                adopted = await self._adopt(database, spec, node_ips)
            except Exception:
                with suppress(HostError, SwitchRefusedError, SwitchUnreachableError):
                    if await self._host.uplink.needs_wire(spec.uplink, spec.name, node_ips):
                        await self._host.uplink.end_bypass(spec.uplink, spec.name)
                        await remove_uplink(database, spec.name)
                raise
        self._tell(Area.UPLINK, adopted.problems)

    async def _adopt(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> Adopted:
        """After each step the Node answers, even if no other follows: the agent may be killed at any time."""
        if not spec.is_userspace and not has_uplink(database.view, spec):
            # In user space it is not needed: until its addresses have moved, the NIC answers as a port, too.
            reason = await self._host.uplink.bypass(spec.uplink, spec.name, node_ips)
            if reason:
                _log.warning("the NIC becomes a port before its addresses move", uplink=spec.uplink, reason=reason)
        await add_uplink(database, spec)
        adopted = await self._host.uplink.adopt(spec.uplink, spec.name, node_ips)
        if not spec.is_userspace:
            await self._host.uplink.end_bypass(spec.uplink, spec.name)
        return adopted

    # --- the items of owners --------------------------------------------------------------------------------------

    def give_up(self, wanted: Mapping[Owner, frozenset[Item]]) -> tuple[frozenset[Owner], Done]:
        """Remove items from the host that no owner wants any more. New items are not added: see `ask`.

        Returns the owners that give up an item, and the completion of the removal: only then may their flows go.
        """
        still_wanted = frozenset[Item]().union(*wanted.values())
        kept: dict[Owner, frozenset[Item]] = {}
        for owner, items in wanted.items():
            before = self._claims.of(owner)
            if before - items - still_wanted:
                kept[owner] = before & (items | still_wanted)
        removed = self._claims.set_all(kept).removed
        leaving = frozenset(kept) if removed else frozenset()
        return leaving, self._change(HostChange(removed=removed))

    def ask(self, wanted: Mapping[Owner, frozenset[Item]]) -> Done:
        """Set the items of these owners. To be called when their flows are in the switch."""
        return self._change(self._claims.set_all(wanted))

    def differs(self, owner: Owner, items: frozenset[Item]) -> bool:
        """Whether the owner requested other items before."""
        return self._claims.of(owner) != items

    @property
    def owners(self) -> Collection[Hashable]:
        """The owners that have requested items."""
        return self._claims.owners

    async def lead_to(self, names: HostNames, items: Collection[Item]) -> None:
        """Add the routes to new peers before flows lead there. `hold` repeats and reports what fails here."""
        with suppress(HostError):
            async with self.using:
                installed = await self._host.installed(names)
                await self._host.apply(HostChange(added=frozenset(items) - installed.items))

    async def hold(self, names: HostNames, shared: HostPlan, wanted: Mapping[Owner, frozenset[Item]]) -> None:
        """Returns when the host holds all requested items, and no others of Windlass. HostError if that is impossible.

        `wanted`: as for `ask`; with `shared`, which these items may depend on, both are applied together.
        """
        self._names, self._shared = names, shared
        self._owes_everything = True
        self._note(self._claims.set_all(wanted))
        await self.drained()

    def _change(self, change: HostChange) -> Done:
        if not change:
            done: Done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        self._note(change)
        return self.drained()

    def _note(self, change: HostChange) -> None:
        self._desired -= change.removed
        self._desired |= change.added
        self._owed |= change.removed | change.added

    def drained(self) -> Done:
        """Is done when the host has all items that were requested before this call."""
        done: Done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._woken.set()
        return done

    # --- the queue ------------------------------------------------------------------------------------------------

    async def work(self) -> NoReturn:
        """Changes that come while the host is busy are done together, next."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            waiting, self._waiting = self._waiting, []
            owed, self._owed = self._owed, set()
            everything, self._owes_everything = self._owes_everything, False
            error: HostError | None = None
            try:
                async with self.using:
                    await (self._compare() if everything else self._apply(owed))
            except HostError as refused:
                error = refused
            for done in waiting:
                if not done.done():
                    done.set_exception(error) if error else done.set_result(None)

    async def _compare(self) -> None:
        if self._names is None:
            return
        installed = await self._host.installed(self._names)
        desired = self._shared | HostPlan(items=frozenset(self._desired))
        self._owed.clear()  # items that came meanwhile are part of the plan
        self._tell(Area.HOST, await self._host.apply(diff(installed, desired)))

    async def _apply(self, items: Collection[Item]) -> None:
        """An error is reported like a problem with an item: a change of a few items must not fail the rest."""
        if not items:
            return
        added = frozenset(item for item in items if item in self._desired)
        try:
            problems = await self._host.apply(HostChange(removed=frozenset(items) - added, added=added))
        except HostError as error:
            problems = (str(error),)
        if problems:
            self._tell(Area.HOST, problems)

    def _tell(self, area: Area, problems: Collection[str]) -> None:
        self._report(area, problems)
        if problems:
            self._look_again()
