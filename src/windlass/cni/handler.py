"""Handles CNI requests: sets up addresses, link, port and flows of a Pod in this order, and removes them in reverse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from windlass.cni import results, wire
from windlass.cni.addresses import HostLocal
from windlass.cni.attachments import (
    Attachment,
    NotReadyError,
    PodNetwork,
    PodPorts,
    PodProgrammer,
    belongs_to,
    interface_name,
    pod_link,
    pod_mac,
)
from windlass.cni.configurations import version_asked
from windlass.cni.errors import Code, RequestError
from windlass.cni.removals import Removal, remove, require_removed
from windlass.cni.request_queues import RequestQueue
from windlass.cni.requests import (
    COMMANDS,
    UNKNOWN,
    AddRequest,
    CheckRequest,
    DeleteRequest,
    GarbageRequest,
    Request,
    StatusRequest,
    VersionRequest,
    parse,
)
from windlass.host.protocol import HostPods, PodDns, PodLink
from windlass.switch.pod_ports import PodPort

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds. `work` plus four times `removal` is less than the 60 s after which the plugin gives up."""

    work: float = 20  # waiting in the queue, then setting up or checking
    removal: float = 9  # for each of flows, port, link and address: each may hang
    at_once: int = 16  # requests in parallel


RequestObserver = Callable[[str, float, str], object]


@dataclass(kw_only=True, eq=False)
class Handler:
    """Handles requests of one container one at a time, and of different containers in parallel."""

    addresses: HostLocal
    pods: HostPods
    ports: PodPorts
    agent: PodProgrammer
    limits: Limits = Limits()
    # Called for every request with its command, duration in seconds, and error name (or empty).
    observe: RequestObserver = lambda _command, _seconds, _error: None

    def __post_init__(self) -> None:
        self._queue = RequestQueue(self.limits.at_once)

    async def answer(self, asked: wire.PluginRequest) -> wire.PluginReply:
        """Always returns an answer: a failure becomes a CNI error."""
        started = time.monotonic()
        command = asked.environment.get("CNI_COMMAND", "")
        bound = log.bind(command=command, container=asked.environment.get("CNI_CONTAINERID"))
        error_name = ""
        try:
            output = await self._handle(parse(asked.environment, asked.config))
        except RequestError as error:
            error_name = error.code.name.lower()
            bound.warning("cni request failed", code=int(error.code), error=str(error))
            bound.debug("cause of the failure", exc_info=error.__cause__)
            return _error_reply(asked, error)
        except Exception as error:  # noqa: BLE001 - a bug that one Pod triggers must not stop the server
            error_name = Code.INTERNAL.name.lower()
            bound.exception("cni request failed unexpectedly")
            unexpected = RequestError(
                Code.INTERNAL, f"the agent failed: {error!r}", "This is a bug in Windlass; see the log of the agent."
            )
            return _error_reply(asked, unexpected)
        finally:
            # Unknown commands share one name: each name becomes a time series.
            self.observe(command if command in COMMANDS else UNKNOWN, time.monotonic() - started, error_name)
        bound.info("cni request done", milliseconds=round((time.monotonic() - started) * 1000, 1))
        return wire.PluginReply(0, output)

    async def _handle(self, request: Request) -> bytes:
        match request:
            case AddRequest():
                return await self._add(request)
            case DeleteRequest():
                await self._delete(request)
            case CheckRequest():
                await self._check(request)
            case GarbageRequest():
                await self._collect_garbage(request)
            case StatusRequest():
                self._status()
            case VersionRequest():
                return results.versions(request.version)
        return b""

    # ---- ADD ----

    async def _add(self, add: AddRequest) -> bytes:
        begun: list[Removal] = []
        deadline = self._deadline()
        async with self._queue.slot(add.attachment.container_id, deadline):
            network = self._network(Code.TRY_AGAIN_LATER)
            _require_namespace(add.netns)
            try:
                async with asyncio.timeout_at(deadline):
                    link = await self._existing(add, network)
                    if link is None:
                        _refuse_workload(add)
                        link = await self._attach(add, network, begun)
            except BaseException as error:  # also if the agent stops: a failed ADD must leave nothing behind
                failures = await remove(begun, self.limits.removal)
                reported = self._too_slow(begun) if isinstance(error, TimeoutError) else error
                if failures and isinstance(reported, RequestError):
                    reported = reported.with_detail(f"Not everything could be removed again: {'; '.join(failures)}.")
                if reported is error:
                    raise
                raise reported from error
        return results.attached(add, link)

    async def _attach(self, add: AddRequest, network: PodNetwork, begun: list[Removal]) -> PodLink:
        """Appends the removal of each step to `begun` before the step: a step that fails may be half done."""
        attachment = add.attachment
        interface = interface_name(add.name, attachment)
        removals = iter(self._removals(attachment.container_id, [attachment], [interface], forget=True))

        begun.append(next(removals))
        with _failing(Code.ADDRESSES_FAILED, "no address could be allocated for the Pod"):
            allocated = await self.addresses.allocate(attachment, network.pod_cidrs, add.requested)
        addresses = tuple(address.ip for address in allocated)
        port = PodPort(
            interface=interface,
            container_id=attachment.container_id,
            namespace=add.namespace,
            name=add.name,
            mac=pod_mac(addresses),
            addresses=addresses,
            netns=add.netns,
        )
        link = _link_for(add, port, network)

        begun.append(next(removals))
        with _failing(Code.LINK_FAILED, f"the link {interface} of the Pod could not be created"):
            await self.pods.attach(link)

        begun.append(next(removals))
        ofport = await self._add_port(port, add.uid)
        begun.append(next(removals))
        await self._program(port, ofport, add.uid)
        return link

    async def _existing(self, add: AddRequest, network: PodNetwork) -> PodLink | None:
        """The link of an earlier ADD that the runtime repeats, if the link is still correct."""
        attachment = add.attachment
        ports = await self._list_ports(self._deadline())
        _refuse_second(add, ports)
        port = next((port for port in ports if belongs_to(port, [attachment])), None)
        if port is None:
            return None
        problems = await self._problems(attachment, add.netns, port, network, add.container)
        if not problems:
            link = _link_for(add, port, network)
            if add.is_workload:
                with _failing(Code.LINK_FAILED, f"container {add.container} could not get the link of its Pod"):
                    await self.pods.attach(link)
            await self._program(port, await self._add_port(port, add.uid), add.uid)
            return link
        log.warning("repeated ADD: the existing attachment is damaged and is replaced", port=port, problems=problems)
        removals = self._removals(port.container_id, [attachment], [port.interface], forget=True)
        require_removed(await remove(removals, self.limits.removal))
        return None

    def _too_slow(self, begun: Sequence[Removal]) -> RequestError:
        reached = f"setting up {begun[-1].what}" if begun else "checking whether the Pod is already attached"
        return RequestError(
            Code.TRY_AGAIN_LATER,
            f"the Pod could not be attached within {self.limits.work:g} s",
            f"The slow step was {reached}; see the log of the agent.",
        )

    # ---- DEL and GC ----

    async def _delete(self, delete: DeleteRequest) -> None:
        attachment = delete.attachment
        deadline = self._deadline()
        async with self._queue.slot(attachment.container_id, deadline):
            ports = await self._list_ports(deadline)
            names = {port.interface for port in ports if belongs_to(port, [attachment])}
            if delete.name is not None:  # an agent that was killed during ADD may have left a link that is not a port
                names.add(interface_name(delete.name, attachment))
            others = {port.interface: port.container_id for port in ports if not belongs_to(port, [attachment])}
            names -= others.keys()  # a digest may collide
            only = attachment.container_id not in others.values()
            removals = self._removals(attachment.container_id, [attachment], sorted(names), forget=only)
            require_removed(await remove(removals, self.limits.removal))

    async def _collect_garbage(self, garbage: GarbageRequest) -> None:
        """Containers with a request in progress are skipped: they are newer than the list of the runtime."""
        busy = self._queue.busy_containers()
        with _failing(Code.ADDRESSES_FAILED, "the addresses in use could not be listed"):
            stale_addresses = await self.addresses.holders() - garbage.valid
        ports = await self._list_ports(self._deadline())
        stale_ports = [port for port in ports if not belongs_to(port, garbage.valid)]
        containers = {port.container_id for port in stale_ports} | {a.container_id for a in stale_addresses}
        failures: list[str] = []
        for container_id in sorted(containers - busy - self._queue.busy_containers()):
            attachments = sorted(a for a in stale_addresses if a.container_id == container_id)
            names = [port.interface for port in stale_ports if port.container_id == container_id]
            try:
                async with self._queue.slot(container_id, self._deadline()):
                    removals = self._removals(container_id, attachments, names, forget=bool(names))
                    failures += await remove(removals, self.limits.removal)
            except RequestError as error:
                failures.append(f"container {container_id}: {error}")
            log.info("garbage collected", container=container_id, interfaces=names)
        require_removed(failures)

    def _removals(
        self, container_id: str, attachments: Sequence[Attachment], interfaces: Sequence[str], *, forget: bool
    ) -> list[Removal]:
        """In the order of setting up: `remove` runs them in reverse."""
        return [
            *(Removal(f"the address of {a.ifname}", partial(self.addresses.release, a)) for a in attachments),
            *(Removal(f"link {name}", partial(self.pods.detach, name)) for name in interfaces),
            *(Removal(f"port {name}", partial(self.ports.delete_pod_port, name)) for name in interfaces),
            *([Removal("the Pod's flows", partial(self.agent.forget, container_id))] if forget else []),
        ]

    # ---- CHECK and STATUS ----

    async def _check(self, check: CheckRequest) -> None:
        attachment = check.attachment
        deadline = self._deadline()
        async with self._queue.slot(attachment.container_id, deadline):
            network = self._network(Code.TRY_AGAIN_LATER)
            _require_namespace(check.netns)
            try:
                async with asyncio.timeout_at(deadline):
                    problems = await self._check_problems(check, network)
            except TimeoutError:
                raise RequestError(
                    Code.TRY_AGAIN_LATER, f"the Pod could not be checked within {self.limits.work:g} s"
                ) from None
        if problems:
            raise RequestError(
                Code.ATTACHMENT_WRONG,
                f"{attachment.ifname} of container {attachment.container_id} is not as it should be",
                "; ".join(problems),
            )

    async def _check_problems(self, check: CheckRequest, network: PodNetwork) -> list[str]:
        ports = await self._list_ports(self._deadline())
        port = next((port for port in ports if belongs_to(port, [check.attachment])), None)
        if port is None:
            return ["the bridge has no port for the Pod"]
        # Addresses outside the podCIDRs belong to other plugins of the chain.
        expected = [address for address in check.expected if network.holds(address)]
        problems = [
            *(f"{ip} is in prevResult but not on the port" for ip in expected if ip not in port.addresses),
            *(f"{ip} is on the port but not in prevResult" for ip in port.addresses if ip not in expected),
            *await self._problems(check.attachment, check.netns, port, network),
        ]
        if not problems:  # both change nothing if the port and its flows are complete
            await self._program(port, await self._add_port(port))
        return problems

    def _status(self) -> None:
        # A Node without a free address is still available: otherwise the runtime would report the Node as not ready,
        # and its healthy Pods would be evicted.
        self._network(Code.NOT_AVAILABLE)
        if reason := self.addresses.unavailable():
            raise RequestError(Code.NOT_AVAILABLE, "no address can be allocated for a Pod", reason)

    # ---- shared ----

    async def _problems(
        self, attachment: Attachment, netns: str, port: PodPort, network: PodNetwork, container: str = ""
    ) -> list[str]:
        foreign = [address for address in port.addresses if not network.holds(address)]
        if foreign:
            return [f"{address} is in no podCIDR of this Node" for address in foreign]
        with _failing(Code.ADDRESSES_FAILED, "the addresses in use could not be listed"):
            problems = [*await self.addresses.check(attachment, port.addresses)]
        with _failing(Code.LINK_FAILED, f"the link {port.interface} could not be examined"):
            problems += await self.pods.check(pod_link(network, port, attachment, netns, container=container))
        return problems

    async def _add_port(self, port: PodPort, uid: str = "") -> int | None:
        with _failing(Code.PORT_FAILED, f"{port.interface} could not be added to the bridge"):
            return await self.ports.add_pod_port(port, uid)

    async def _program(self, port: PodPort, ofport: int | None, uid: str = "") -> None:
        if ofport is None:  # its interface appears later, and then its flows
            return
        with _failing(Code.FLOWS_FAILED, f"the flows of the Pod at {port.interface} could not be installed"):
            await self.agent.programmed(port.attached(ofport), uid)

    async def _list_ports(self, deadline: float) -> Sequence[PodPort]:
        with _failing(Code.PORT_FAILED, "the ports of the bridge could not be listed"):
            async with asyncio.timeout_at(deadline):
                return await self.ports.list_pod_ports()

    def _network(self, code: Code) -> PodNetwork:
        try:
            return self.agent.pod_network()
        except NotReadyError as error:
            raise RequestError(code, "the agent is not ready to attach Pods", str(error)) from error

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.limits.work


def _error_reply(asked: wire.PluginRequest, error: RequestError) -> wire.PluginReply:
    return wire.PluginReply(1, results.failed(version_asked(asked.config), error))


@contextmanager
def _failing(code: Code, msg: str) -> Iterator[None]:
    """Turn any error within the block into this RequestError; a RequestError passes unchanged."""
    try:
        yield
    except RequestError:
        raise
    except TimeoutError as error:
        raise RequestError(code, msg, str(error) or "It timed out.") from error
    except Exception as error:
        raise RequestError(code, msg, str(error) or repr(error)) from error


def _require_namespace(netns: str) -> None:
    if netns.startswith("/") and not Path(netns).exists():  # on Windows it is an ID
        raise RequestError(
            Code.UNKNOWN_CONTAINER,
            f"the network namespace {netns} does not exist",
            "The container is gone, or the agent does not see the directory of the runtime: it must share that mount.",
        )


def _link_for(add: AddRequest, port: PodPort, network: PodNetwork) -> PodLink:
    dns = PodDns(add.dns.nameservers, add.dns.domain, add.dns.search, add.dns.options)
    return pod_link(network, port, add.attachment, add.netns, dns, add.container)


def _refuse_workload(add: AddRequest) -> None:
    if add.is_workload:
        raise RequestError(
            Code.UNKNOWN_CONTAINER,
            f"the sandbox {add.attachment.container_id} of container {add.container} is not attached",
            "The runtime must attach the sandbox of a Pod before its other containers.",
        )


def _refuse_second(add: AddRequest, ports: Sequence[PodPort]) -> None:
    interface = interface_name(add.name, add.attachment)
    for port in ports:
        owner = f"Pod {port.namespace}/{port.name}"
        if port.interface == interface and port.container_id != add.attachment.container_id:
            raise RequestError(
                Code.NAME_TAKEN,
                f"the interface name {interface} is taken by {owner}, container {port.container_id}",
                "The digests of both containers are equal; the next sandbox of the Pod will have a different one.",
            )
        if port.container_id == add.attachment.container_id and port.interface != interface:
            raise RequestError(
                Code.SECOND_INTERFACE,
                f"{owner} is already on this network, with {port.interface}",
                f"Windlass supports one interface for each Pod; {add.attachment.ifname} would be the second one.",
            )
