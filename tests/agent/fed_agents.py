"""An agent in the process of the test, on a Node with real Open vSwitch. The test supplies the cluster's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from windlass.agent.agents import Agent
from windlass.cluster.changes import NOTHING, ChangeSet
from windlass.cluster.clusters import Cluster, decode, objects_of, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import APIObject, EndpointSlice, Node, Service, ServiceCIDR
from windlass.cluster.sources import AllPodsKnown, ClusterChange
from windlass.host.linux import namespaces
from windlass.host.linux.hosts import LinuxHost
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox import labs
from windlass.lab.scenarios import segments
from windlass.lab.scenarios.segments import Machine
from windlass.model.nodes import AttachedPod
from windlass.nodes.config import Config, DatapathType
from windlass.program import Program
from windlass.switch.ovsdb import open_database
from windlass.switch.pod_ports import PodPort, add_pod_port

PATIENCE = 20.0
NODE_IP, OUTSIDE_IPS = "10.176.25.11", ("10.176.25.98", "10.176.25.99")

WEB = PodPort("web", "id-web", "default", "web", "0a:58:ac:10:01:05", (ip_address("172.16.1.5"),))


class Fed(AllPodsKnown):
    """A cluster source with objects of the test."""

    watches = ()

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ClusterChange] = asyncio.Queue()
        self._cluster = Cluster("0")

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        """Earlier objects stay: a source reports everything to a new listener."""
        if self._cluster.nodes:
            self._queue = asyncio.Queue()
            yield ClusterChange(self._cluster)
        while True:
            yield await self._queue.get()

    def put(self, *objects: APIObject | str, triggered: tuple[float, ...] = ()) -> str:
        """Set these objects; delete those named by a key (`Service default/web`). The revision of the new state."""
        members = {kind.struct.__name__: (member, kind) for member, kind in kinds_of(Cluster).items()}
        content: dict[str, dict[str, APIObject]] = {}
        changes = NOTHING
        for one in objects:
            name, key = one.split() if isinstance(one, str) else (type(one).__name__, one.key)
            member, kind = members[name]
            of_kind = content.setdefault(member, dict(objects_of(self._cluster, member)))
            if isinstance(one, str):
                del of_kind[key]
            else:
                of_kind[key] = one
            changes |= ChangeSet.of({kind.struct: {key}})
        revision = str(int(self._cluster.revision) + 1)
        self._cluster = with_objects(self._cluster, content, revision)
        self._queue.put_nowait(ClusterChange(self._cluster, changes, triggered))
        return revision


class FedAgent:
    outside = ""  # the namespace of another machine on the same wire

    def __init__(self, config: Config, switch: ovs.SwitchProcesses, host: LinuxHost) -> None:
        self.switch = switch
        self.host: Any = host  # a test may pass a subclass, and use what that has
        self.source = Fed()
        self._config = config
        self.agent = Agent(config, host, self.source)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts a new agent for the same Node and with the same source."""
        self.agent = Agent(self._config, self.host, self.source)
        async with open_database(str(self._config.ovsdb_socket), patience=5) as database:
            serving = asyncio.create_task(self.agent.serve(database))
            try:
                yield
            finally:
                serving.cancel()
                await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    async def holds(self, *objects: APIObject | str) -> None:
        """Puts these objects into the source, and returns when the Node has that state."""
        await self.reaches(self.source.put(*objects))

    async def reaches(self, revision: str) -> None:
        status = self.agent.status
        reached = await status.wait_until(lambda: status.ready and int(status.revision or 0) >= int(revision), PATIENCE)
        assert reached, (status.waiting_for, self.agent.view.problems)

    async def settled(self, *objects: APIObject | str) -> None:
        """The same; and former flows handle no packet any more."""
        await self.holds(*objects)
        await self.switch.settled()

    async def attach(self, port: PodPort, uid: str = "") -> AttachedPod:
        """Adds the port of a Pod, and returns when the switch has the Pod's flows. No container answers there."""
        await self.command(*f"ip link add {port.interface} up type veth peer name far".split())
        async with open_database(str(self._config.ovsdb_socket), patience=5) as database:
            attached = port.attached(await add_pod_port(database, self._config.bridge, port))
        await self.agent._pods.programmed(attached, uid)
        return attached

    def hold_back_flows(self, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
        """Nothing is sent to the switch before the second event. The first one tells that something is to be sent."""
        installed, is_due, may_be_sent = self.agent._switch._installed, asyncio.Event(), asyncio.Event()
        assert installed is not None
        apply = installed.apply

        async def applied(parts: Program) -> None:
            is_due.set()
            await may_be_sent.wait()
            await apply(parts)

        monkeypatch.setattr(installed, "apply", applied)
        return is_due, may_be_sent

    async def ofctl(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("ovs-ofctl", "-O", "OpenFlow15", *arguments),
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", **self.switch.environment},
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    async def command(self, *arguments: str) -> str:
        """Runs a command on the Node, whose namespace this thread is in."""
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode()


@asynccontextmanager
async def fed_agent(host_type: type[LinuxHost] = LinuxHost, **options: object) -> AsyncIterator[FedAgent]:
    """A ready agent. Within the block this thread is on the Node (eth0 with 10.176.25.11/24)."""
    async with fed_node(host_type, **options) as fed, fed.running():
        await fed.holds(node())
        yield fed


@asynccontextmanager
async def fed_node(host_type: type[LinuxHost] = LinuxHost, **options: object) -> AsyncIterator[FedAgent]:
    """The same without a running agent."""
    machine = Machine("node", "node-1", (segments._nic("eth0", [ip_address(NODE_IP)]),))
    client = Machine("host", "client", (segments._nic("eth0", map(ip_address, OUTSIDE_IPS)),))
    with labs.opened() as lab:
        underlay = Underlay(lab, segments.segments([machine]))
        await asyncio.to_thread(underlay.create)
        namespace = await asyncio.to_thread(underlay.plug, machine)
        switch = ovs.SwitchProcesses.on_linux("node-1", namespace, lab.folder / "ovs")
        config = Config(
            node_name="node-1",
            run_directory=str(lab.folder / "run"),
            state_directory=str(lab.folder / "state"),
            ovs_run_directory=str(switch.folder),
            datapath_type=DatapathType(ovs.datapath_type()),
            **options,
        )
        (lab.folder / "run").mkdir()
        try:
            await switch.start()
            with namespaces.entered(namespaces.path_of(namespace)):
                host = host_type(lab.folder / "state")
                try:
                    fed = FedAgent(config, switch, host)
                    fed.outside = await asyncio.to_thread(underlay.plug, client)
                    yield fed
                finally:
                    await host.close()
        finally:
            await switch.end()


def node(**metadata: object) -> Node:
    return _decoded(
        Node,
        apiVersion="v1",
        metadata={"name": "node-1", **metadata},
        spec={"podCIDRs": ["172.16.1.0/24"]},
        status={"addresses": [{"type": "InternalIP", "address": NODE_IP}]},
    )


def other_node(number: int, address: str) -> Node:
    """A peer, with the PodCIDR 172.16.<number>.0/24."""
    return _decoded(
        Node,
        apiVersion="v1",
        metadata={"name": f"node-{number}"},
        spec={"podCIDRs": [f"172.16.{number}.0/24"]},
        status={"addresses": [{"type": "InternalIP", "address": address}]},
    )


def service_cidr(cidr: str) -> ServiceCIDR:
    metadata = {"name": "kubernetes"}
    return _decoded(
        ServiceCIDR,
        apiVersion="networking.k8s.io/v1",
        metadata=metadata,
        spec={"cidrs": [cidr]},
    )


def service(name: str, address: str, *ports: dict[str, object], **spec: object) -> Service:
    return _decoded(
        Service,
        apiVersion="v1",
        metadata={"name": name, "namespace": "default"},
        spec={"clusterIPs": [address], "ports": ports or [{"name": "http", "port": 80}], **spec},
    )


def endpoints(name: str, *addresses: str, protocol: str = "TCP", of: str = "", **conditions: bool) -> EndpointSlice:
    """A slice of the Service of that name, or of Service `of`; endpoints in this Node's PodCIDR are local."""
    return _decoded(
        EndpointSlice,
        apiVersion="discovery.k8s.io/v1",
        metadata={
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": of or name},
        },
        addressType="IPv4",
        ports=[{"name": "http", "port": 8080, "protocol": protocol}],
        endpoints=[
            {
                "addresses": [address],
                "nodeName": "node-1" if address.startswith("172.16.1.") else "node-2",
                "conditions": conditions,
            }
            for address in addresses
        ],
    )


def _decoded(kind: type[APIObject], **fields: object) -> APIObject:
    decoded = decode({"kind": kind.__name__, **fields})
    assert isinstance(decoded, kind)
    return decoded
