"""What happens for each CNI request: addresses, link, port and flows of a Pod, set up in this order and removed in
the reverse one. How each of them is done is behind the interfaces in `attachments`; sockets are in `server`.
"""

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
from windlass.cni.attachments import (
    Addresses,
    Attachment,
    NotReadyError,
    PodFlows,
    PodNetwork,
    PodPorts,
    attached_pod,
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
from windlass.host.protocol import HostPods, PodLink
from windlass.switch.pod_ports import PodPort

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds. `work` and four times `removal` stay below the 60 after which the plugin gives up."""

    work: float = 20  # waiting for its turn, then setting up or checking
    removal: float = 9  # each of flows, port, link and address: deletion of an endpoint has been seen to hang
    at_once: int = 16  # requests; further ones wait


Observer = Callable[[str, float, str], object]


class Handler:
    """Requests of one container come one after the other, those of different ones side by side."""

    def __init__(
        self,
        *,
        addresses: Addresses,
        pods: HostPods,
        ports: PodPorts,
        agent: PodFlows,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        observe: Observer = lambda _command, _seconds, _error: None,
    ) -> None:
        """`observe` is told of every request: its command, how long it took, and the kind of its error, if any."""
        self._addresses = addresses
        self._pods = pods
        self._ports = ports
        self._agent = agent
        self._limits = limits
        self._observe = observe
        self._queue = RequestQueue(limits.at_once)

    async def answer(self, asked: wire.PluginRequest) -> wire.PluginReply:
        """Every request gets an answer, and its failure is nobody else's."""
        started = time.monotonic()
        command = asked.environment.get("CNI_COMMAND", "")
        told = log.bind(command=command, container=asked.environment.get("CNI_CONTAINERID"))
        error_name = ""
        try:
            output = await self._handle(parse(asked.environment, asked.config))
        except RequestError as error:
            error_name = error.code.name.lower()
            told.warning("cni request failed", code=int(error.code), error=str(error))
            told.debug("the cause of that", exc_info=error.__cause__)
            return _refusal(asked, error)
        except Exception as error:  # noqa: BLE001 - a bug met by one Pod must not take the others' server down
            error_name = Code.INTERNAL.name.lower()
            told.exception("cni request failed in a way nobody thought of")
            unforeseen = RequestError(
                Code.INTERNAL, f"the agent failed: {error!r}", "This is a bug in Windlass; its log says more."
            )
            return _refusal(asked, unforeseen)
        finally:
            # What a stranger writes there could be anything, and each would be a time series.
            self._observe(command if command in COMMANDS else UNKNOWN, time.monotonic() - started, error_name)
        told.info("cni request done", milliseconds=round((time.monotonic() - started) * 1000, 1))
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
                    link = await self._existing(add, network) or await self._attach(add, network, begun)
            except BaseException as error:  # also when the agent stops: a failed ADD leaves nothing behind
                failures = await remove(begun, self._limits.removal)
                told = self._too_slow(begun) if isinstance(error, TimeoutError) else error
                if failures and isinstance(told, RequestError):
                    told = told.besides(f"Not all that was begun could be removed: {'; '.join(failures)}.")
                if told is error:
                    raise
                raise told from error
        return results.attached(add, link)

    async def _attach(self, add: AddRequest, network: PodNetwork, begun: list[Removal]) -> PodLink:
        """Appends to `begun` before each step, since a step that fails may have done half of its work."""
        attachment = add.attachment
        interface = interface_name(add.name, attachment)
        removals = iter(self._removals(attachment.container_id, [attachment], [interface], forget=True))

        begun.append(next(removals))
        with _failing(Code.ADDRESSES_FAILED, "no address could be given to the Pod"):
            given = await self._addresses.allocate(attachment, network.pod_cidrs, add.wished)
        addresses = tuple(address.ip for address in given)
        port = PodPort(
            interface=interface,
            container_id=attachment.container_id,
            namespace=add.namespace,
            name=add.name,
            mac=pod_mac(addresses),
            addresses=addresses,
            netns=add.netns,
        )
        link = pod_link(network, port, attachment, add.netns)

        begun.append(next(removals))
        with _failing(Code.LINK_FAILED, f"the Pod could not be linked to the Node by {interface}"):
            await self._pods.attach(link)

        begun.append(next(removals))
        ofport = await self._add_port(port)
        begun.append(next(removals))
        await self._program(port, ofport)
        return link

    async def _existing(self, add: AddRequest, network: PodNetwork) -> PodLink | None:
        """The link of an ADD that was done before (the runtime repeats it), if it is still as it should be."""
        attachment = add.attachment
        ports = await self._list_ports(self._deadline())
        _refuse_second(add, ports)
        port = next((port for port in ports if belongs_to(port, [attachment])), None)
        if port is None:
            return None
        problems = await self._problems(attachment, add.netns, port, network)
        if not problems:
            await self._program(port, await self._add_port(port))
            return pod_link(network, port, attachment, add.netns)
        log.warning("a repeated ADD finds the Pod damaged, and attaches it anew", port=port, problems=problems)
        removals = self._removals(port.container_id, [attachment], [port.interface], forget=True)
        require_removed(await remove(removals, self._limits.removal))
        return None

    def _too_slow(self, begun: Sequence[Removal]) -> RequestError:
        reached = f"setting up {begun[-1].what}" if begun else "looking whether the Pod is attached already"
        return RequestError(
            Code.TRY_AGAIN_LATER,
            f"the Pod could not be attached within {self._limits.work:g} s",
            f"What took too long was {reached}; look at the agent's log.",
        )

    # ---- DEL and GC ----

    async def _delete(self, delete: DeleteRequest) -> None:
        attachment = delete.attachment
        deadline = self._deadline()
        async with self._queue.slot(attachment.container_id, deadline):
            ports = await self._list_ports(deadline)
            names = {port.interface for port in ports if belongs_to(port, [attachment])}
            if delete.name is not None:  # an agent that was killed within ADD left a link that is not a port yet
                names.add(interface_name(delete.name, attachment))
            others = {port.interface: port.container_id for port in ports if not belongs_to(port, [attachment])}
            names -= others.keys()  # never by a name that happens to be equal
            only = attachment.container_id not in others.values()
            removals = self._removals(attachment.container_id, [attachment], sorted(names), forget=only)
            require_removed(await remove(removals, self._limits.removal))

    async def _collect_garbage(self, garbage: GarbageRequest) -> None:
        """Containers with a request under way are left alone: they are newer than the runtime's list."""
        busy = self._queue.busy_containers()
        with _failing(Code.ADDRESSES_FAILED, "the addresses in use could not be listed"):
            stale_addresses = await self._addresses.holders() - garbage.valid
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
                    failures += await remove(removals, self._limits.removal)
            except RequestError as error:
                failures.append(f"container {container_id}: {error}")
            log.info("garbage collected", container=container_id, interfaces=names)
        require_removed(failures)

    def _removals(
        self, container_id: str, attachments: Sequence[Attachment], interfaces: Sequence[str], *, forget: bool
    ) -> list[Removal]:
        """In the order of setting up."""
        return [
            *(Removal(f"the address of {a.ifname}", partial(self._addresses.release, a)) for a in attachments),
            *(Removal(f"link {name}", partial(self._pods.detach, name)) for name in interfaces),
            *(Removal(f"port {name}", partial(self._ports.delete_pod_port, name)) for name in interfaces),
            *([Removal("the Pod's flows", partial(self._agent.forget, container_id))] if forget else []),
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
                    Code.TRY_AGAIN_LATER, f"the Pod could not be checked within {self._limits.work:g} s"
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
            return ["the bridge has no port for it"]
        # Addresses outside the podCIDRs are those of other plugins of the chain.
        expected = [address for address in check.expected if network.holds(address)]
        problems = [
            *(f"prevResult has {address}, the port has not" for address in expected if address not in port.addresses),
            *(f"the port has {address}, prevResult has not" for address in port.addresses if address not in expected),
            *await self._problems(check.attachment, check.netns, port, network),
        ]
        if not problems:  # neither changes anything if all is well, and both say what is not
            await self._program(port, await self._add_port(port))
        return problems

    def _status(self) -> None:
        # A Node without a free address is still available: were it not, the runtime would report the whole Node as
        # not ready, and its Pods, which are well, would be evicted.
        self._network(Code.NOT_AVAILABLE)
        if reason := self._addresses.unavailable():
            raise RequestError(Code.NOT_AVAILABLE, "no address can be given to a Pod", reason)

    # ---- shared ----

    async def _problems(self, attachment: Attachment, netns: str, port: PodPort, network: PodNetwork) -> list[str]:
        foreign = [address for address in port.addresses if not network.holds(address)]
        if foreign:
            return [f"{address} is in no podCIDR of this Node" for address in foreign]
        with _failing(Code.ADDRESSES_FAILED, "the addresses in use could not be listed"):
            problems = [*await self._addresses.check(attachment, port.addresses)]
        with _failing(Code.LINK_FAILED, f"the link {port.interface} could not be examined"):
            problems += await self._pods.check(pod_link(network, port, attachment, netns))
        return problems

    async def _add_port(self, port: PodPort) -> int:
        with _failing(Code.PORT_FAILED, f"{port.interface} could not be made a port of the bridge"):
            return await self._ports.add_pod_port(port)

    async def _program(self, port: PodPort, ofport: int) -> None:
        with _failing(Code.FLOWS_FAILED, f"the flows of the Pod at {port.interface} could not be installed"):
            await self._agent.programmed(attached_pod(port, ofport))

    async def _list_ports(self, deadline: float) -> Sequence[PodPort]:
        with _failing(Code.PORT_FAILED, "the ports of the bridge could not be listed"):
            async with asyncio.timeout_at(deadline):
                return await self._ports.list_pod_ports()

    def _network(self, code: Code) -> PodNetwork:
        try:
            return self._agent.pod_network()
        except NotReadyError as error:
            raise RequestError(code, "the agent is not ready to attach Pods", str(error)) from error

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._limits.work


def _refusal(asked: wire.PluginRequest, error: RequestError) -> wire.PluginReply:
    return wire.PluginReply(1, results.failed(version_asked(asked.config), error))


@contextmanager
def _failing(code: Code, msg: str) -> Iterator[None]:
    """Whatever goes wrong within is told as this; only the words of a `RequestError` are better."""
    try:
        yield
    except RequestError:
        raise
    except TimeoutError as error:
        raise RequestError(code, msg, str(error) or "It took too long.") from error
    except Exception as error:
        raise RequestError(code, msg, str(error) or repr(error)) from error


def _require_namespace(netns: str) -> None:
    if netns.startswith("/") and not Path(netns).exists():  # on Windows it is not a path
        raise RequestError(
            Code.UNKNOWN_CONTAINER,
            f"the network namespace {netns} does not exist",
            "The container has gone, or the agent does not see the runtime's files: it must share their mount.",
        )


def _refuse_second(add: AddRequest, ports: Sequence[PodPort]) -> None:
    interface = interface_name(add.name, add.attachment)
    for port in ports:
        owner = f"Pod {port.namespace}/{port.name}"
        if port.interface == interface and port.container_id != add.attachment.container_id:
            raise RequestError(
                Code.NAME_TAKEN,
                f"the interface name {interface} is taken by {owner}, container {port.container_id}",
                "Their digests happen to be equal; the Pod's next sandbox will have another.",
            )
        if port.container_id == add.attachment.container_id and port.interface != interface:
            raise RequestError(
                Code.SECOND_INTERFACE,
                f"{owner} is on this network already, by {port.interface}",
                f"Windlass gives a Pod one interface, and {add.attachment.ifname} would be another.",
            )
