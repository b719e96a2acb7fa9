"""Forged packets: through the tunnel, to its port, with addresses of other Pods, to other MACs.

Mallory is a Pod on Node a, the outsider a machine on the wire of Node b; bob is a Pod on Node b, alice one on Node a.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from forged_frames import (
    ARP,
    DESTINATION_OPTIONS,
    FRAGMENT,
    HOP_BY_HOP,
    ROUTING,
    SERVICE_VLAN,
    VIRTUAL_MAC,
    VLAN,
    arrived,
    ethernet,
    extension,
    fragments,
    ip_packet,
    ip_type,
    tcp_syn,
    token,
    tunnelled,
    udp,
    udp_bytes,
)
from forged_scenes import (
    ANOTHER_MAC,
    BOTH,
    CLUSTER,
    MODES,
    OUTSIDER_MAC,
    V4,
    V6,
    Family,
    Scene,
    bridge,
    control_of_mallory,
    from_mallory,
    from_outside,
    mallory_mac,
    to_node,
)
from labnet import needs_root, running_cluster

from windlass.lab.network import ovs
from windlass.lab.probing import sockets
from windlass.lab.probing.packets import UDP
from windlass.lab.sandbox.time_limits import seconds
from windlass.model.families import family_of
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, NODE_STAND_IN, VIRTUAL_CLIENT
from windlass.pipeline.snat_ports import RESERVED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


NODE_PORT, KEPT_NODE_PORT = 30080, 30066


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    kind, port = MODES[request.param]
    async with running_cluster(CLUSTER.format(mode=request.param, type=kind, port=port)) as cluster:
        yield Scene(cluster, port)


pytestmark = [needs_root, pytest.mark.asyncio(loop_scope="module")]

# Through the tunnel ---------------------------------------------------------------------------------------------


def pretended(inner: Family) -> Iterator[tuple[str, str]]:
    """The source addresses that a forged inner packet can have."""
    for name in ("gateway_a", "gateway_b", "alice", "a", "b", "outsider", "stranger"):
        yield name, getattr(inner, name)


@pytest.mark.parametrize("inner", BOTH)
@pytest.mark.parametrize("outer", BOTH)
async def test_tunnel_packets_of_machines_outside_are_dropped(scene: Scene, outer: str, inner: str) -> None:
    mac = scene.mac_of("b")
    for name, source in pretended(BOTH[inner]):
        sign = token()
        forged = udp(source, BOTH[inner].bob, (1234, 5300), sign)
        frame = from_outside(mac, BOTH[outer].outsider, BOTH[outer].b, scene.port, tunnelled(scene.port, forged))
        assert not await arrived(
            scene.outsider, [frame], sign, [scene.pod("bob")], (partial(to_node, mac, BOTH[outer]), bridge(scene))
        ), f"as {name}"


@pytest.mark.parametrize("inner", BOTH)
async def test_a_peer_may_send_packets_of_its_own_pods_only(scene: Scene, inner: str) -> None:
    """With the outer address of a peer: the Node cannot distinguish it from the peer."""
    mac, ends = scene.mac_of("b"), BOTH[inner]
    for name, source in pretended(ends):
        sign = token()
        forged = tunnelled(scene.port, udp(source, ends.bob, (1234, 5300), sign))
        frame = from_outside(mac, V4.a, V4.b, scene.port, forged)
        carried = await arrived(
            scene.outsider, [frame], sign, [scene.pod("bob")], (partial(to_node, mac, V4), bridge(scene))
        )
        assert carried == (name in {"gateway_a", "alice", "a"}), f"as {name}"


@pytest.mark.parametrize("inner", BOTH)
async def test_a_tunnel_delivers_only_to_local_pods(scene: Scene, inner: str) -> None:
    mac, ends = scene.mac_of("b"), BOTH[inner]
    for name, to, port in (
        ("the Node", ends.b, 5300),
        ("a NodePort", ends.b, KEPT_NODE_PORT),
        ("an SNAT port of Pods", ends.b, RESERVED.pods[0]),
        ("an SNAT port of Services", ends.b, RESERVED.services[0]),
        ("somebody outside", ends.stranger, 5300),
        ("a peer's Pod", ends.mallory, 5300),
    ):
        sign = token()
        frame = from_outside(
            mac, V4.a, V4.b, scene.port, tunnelled(scene.port, udp(ends.alice, to, (1234, port), sign))
        )
        assert not await arrived(
            scene.outsider,
            [frame],
            sign,
            [scene.node("b", "windlass-gw0"), scene.pod("mallory")],
            (partial(to_node, mac, V4), bridge(scene)),
        ), f"to {name}"


# To the tunnel's port -------------------------------------------------------------------------------------------


def disguises(ends: Family, to: str, port: int, payload: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """IP packets by which a Pod can send this payload to a UDP port."""
    yield "plain", [udp(ends.mallory, to, (1234, port), payload)]
    long = payload + bytes(1400)
    yield "fragments", fragments(ends.mallory, to, UDP, udp_bytes(ends.mallory, to, (1234, port), long), 1232)
    if ends is V6:
        datagram = udp_bytes(ends.mallory, to, (1234, port), payload)
        for kind in (HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, FRAGMENT):
            yield f"header {kind}", [ip_packet(ends.mallory, to, kind, extension(kind, UDP, datagram))]
        both = extension(FRAGMENT, DESTINATION_OPTIONS, extension(DESTINATION_OPTIONS, UDP, datagram))
        yield "a fragment header first", [ip_packet(ends.mallory, to, FRAGMENT, both)]


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("target", ["a", "b", "gateway_a", "gateway_b"])
async def test_no_pod_sends_to_a_tunnels_port(scene: Scene, family: str, target: str) -> None:
    ends = BOTH[family]
    to = getattr(ends, target)
    for how, _ in disguises(ends, to, scene.port, b""):
        sign = token()
        payload = tunnelled(scene.port, udp(ends.alice, ends.bob, (1234, 5300), sign))
        packets = dict(disguises(ends, to, scene.port, payload))[how]
        frames = [from_mallory(packet) for packet in packets]
        node = target[-1]
        at = [scene.pod("bob"), scene.node(node, "windlass-gw0")]
        if target in {"a", "b"}:  # to a gateway of a peer the packet goes through the tunnel, which passes there
            at.append(scene.node(node, "br-int"))
        if target == "b":
            at.append(scene.node("b", "eth0"))
        if how == "fragments" and ovs.datapath_type() == "netdev":
            at = [scene.pod("bob")]  # the switch sees no port of them; the Node that gets them does not unpack them
        assert not await arrived(scene.pod("mallory"), frames, sign, at, control_of_mallory(scene, ends)), how


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("port", [53, KEPT_NODE_PORT])
async def test_no_service_reaches_a_tunnels_port(scene: Scene, family: str, port: int) -> None:
    ends = BOTH[family]
    sign = token()
    payload = tunnelled(scene.port, udp(ends.alice, ends.bob, (1234, 5300), sign))
    frame = from_mallory(udp(ends.mallory, ends.service if port == 53 else ends.b, (1234, port), payload))
    at = [scene.pod("bob"), scene.node("b", "windlass-gw0"), scene.node("b", "br-int")]
    assert not await arrived(scene.pod("mallory"), [frame], sign, at, control_of_mallory(scene, ends))


@pytest.mark.parametrize("family", BOTH)
async def test_a_pod_sends_to_another_pod_whatever_the_port(scene: Scene, family: str) -> None:
    ends = BOTH[family]
    for how, _ in disguises(ends, ends.bob, scene.port, b""):
        if how == "header 43" or "fragment" in how:
            continue  # Open vSwitch in user space passes whole fragments only, and small ones never
        sign = token()
        packets = dict(disguises(ends, ends.bob, scene.port, sign))[how]
        frames = [from_mallory(packet) for packet in packets]
        assert await arrived(scene.pod("mallory"), frames, sign, [scene.pod("bob")], control_of_mallory(scene, ends)), (
            how
        )


@pytest.mark.parametrize("family", BOTH)
async def test_fragments_of_a_pod_pass(scene: Scene, family: str) -> None:
    ends = BOTH[family]
    for to, at in ((ends.bob, scene.pod("bob")), (ends.outsider, scene.outsider)):
        sign = token()
        datagram = udp_bytes(ends.mallory, to, (1234, 5300), bytes(1400) + sign)
        frames = [from_mallory(packet) for packet in fragments(ends.mallory, to, UDP, datagram, 1232)]
        assert await arrived(scene.pod("mallory"), frames, sign, [at], control_of_mallory(scene, ends)), to


# In the name of others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", BOTH)
async def test_a_pod_cannot_use_the_address_of_another(scene: Scene, family: str) -> None:
    """Neither in VLAN tags nor behind extension headers nor in fragments. In tags also not its own address."""
    ends = BOTH[family]
    kind = ip_type(ends.bob)
    for source, name in ((ends.alice, "alice"), (ends.gateway_a, "the gateway"), (ends.mallory, "itself")):
        sign = token()
        datagram = udp_bytes(source, ends.bob, (1234, 5300), sign)
        packet = udp(source, ends.bob, (1234, 5300), sign)
        long = udp_bytes(source, ends.bob, (1234, 5300), sign + bytes(1400))
        frames = {
            "tag": [from_mallory(packet, VLAN)],
            "service tag": [from_mallory(packet, SERVICE_VLAN)],
            "two tags": [from_mallory(packet, VLAN, VLAN)],
            "two kinds of tags": [from_mallory(packet, SERVICE_VLAN, VLAN)],
        }
        if source != ends.mallory:
            frames |= {
                "fragments": [from_mallory(one) for one in fragments(source, ends.bob, UDP, long, 1232)],
                "a multicast MAC": [ethernet(VIRTUAL_MAC, "01:00:5e:00:00:01", kind, packet)],
                "an IPX frame": [ethernet(VIRTUAL_MAC, mallory_mac(), 0x8137, packet)],
            }
        if source != ends.mallory and ends is V6:
            frames |= {
                f"header {header}": [
                    from_mallory(ip_packet(source, ends.bob, header, extension(header, UDP, datagram)))
                ]
                for header in (HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS, FRAGMENT)
            }
        for how, forged in frames.items():
            assert not await arrived(
                scene.pod("mallory"), forged, sign, [scene.pod("bob")], control_of_mallory(scene, ends)
            ), f"as {name}: {how}"


async def test_tagged_frames_of_pods_are_dropped(scene: Scene) -> None:
    """ARP requests in tagged frames are not answered."""
    sha, sender = bytes.fromhex(mallory_mac().replace(":", "")), bytes([172, 16, 1, 66])
    asks = b"\0\1\x08\0\6\4\0\1" + sha + sender + bytes(6) + bytes([172, 16, 1, 77])
    answer = bytes([172, 16, 1, 77]) + sha + sender
    for tags, answered in (((), True), ((VLAN,), False), ((SERVICE_VLAN, VLAN), False)):
        frame = ethernet("ff:ff:ff:ff:ff:ff", mallory_mac(), ARP, asks, *tags)
        seen = await arrived(
            scene.pod("mallory"), [frame], answer, [scene.pod("mallory")], control_of_mallory(scene, V4)
        )
        assert seen == answered, tags


# From the wire ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("tags", [(), (VLAN,)])
async def test_frames_for_another_machine_are_ignored(scene: Scene, family: str, tags: tuple[int, ...]) -> None:
    ends, mac = BOTH[family], scene.mac_of("b")
    for to, served in ((mac, not tags), (ANOTHER_MAC, False)):
        sign = token()
        syn = tcp_syn(ends.outsider, ends.b, (1234 + served, NODE_PORT), sign)
        frame = ethernet(to, OUTSIDER_MAC, ip_type(ends.b), syn, *tags)
        asked = await arrived(
            scene.outsider, [frame], sign, [scene.pod("bob")], (partial(to_node, mac, ends), bridge(scene))
        )
        assert asked == served, to


@pytest.mark.parametrize("family", BOTH)
async def test_frames_from_outside_with_addresses_of_the_node_or_its_pods_are_dropped(
    scene: Scene, family: str
) -> None:
    ends, mac = BOTH[family], scene.mac_of("b")
    for name in ("b", "gateway_b", "alice", "gateway_a", "stranger"):
        sign = token()
        frame = from_outside(mac, getattr(ends, name), ends.bob, 5300, sign)
        heard = await arrived(
            scene.outsider, [frame], sign, [scene.pod("bob")], (partial(to_node, mac, ends), bridge(scene))
        )
        assert heard == (name == "stranger"), f"as {name}"


@pytest.mark.parametrize("family", BOTH)
async def test_a_machine_outside_reaches_a_node_port_only_with_an_address_that_no_pod_has(
    scene: Scene, family: str
) -> None:
    """Policies of the endpoint see the client."""
    ends, mac = BOTH[family], scene.mac_of("b")
    for name in ("alice", "gateway_a", "bob", "outsider"):
        sign = token()
        syn = tcp_syn(getattr(ends, name), ends.b, (1300, NODE_PORT), sign)
        frame = ethernet(mac, OUTSIDER_MAC, ip_type(ends.b), syn)
        heard = await arrived(
            scene.outsider, [frame], sign, [scene.pod("bob")], (partial(to_node, mac, ends), bridge(scene))
        )
        assert heard == (name == "outsider"), f"as {name}"


@pytest.mark.parametrize("family", BOTH)
async def test_the_host_receives_no_packet_with_its_own_source_address(scene: Scene, family: str) -> None:
    """Also not from an address of its Pods."""
    ends, mac = BOTH[family], scene.mac_of("b")
    kind = family_of(ip_address(ends.b))
    with sockets.opened(scene.node("b", "br-int").namespace, kind, socket.SOCK_DGRAM) as listener:
        listener.bind((ends.b, 5301))
        for source in (ends.b, ends.gateway_b, ends.bob):
            sign, honest = token(), token()
            forged = from_outside(mac, source, ends.b, 5301, sign)
            await arrived(scene.outsider, [forged], sign, [], (partial(to_node, mac, ends), bridge(scene)))
            await arrived(
                scene.outsider,
                [from_outside(mac, ends.outsider, ends.b, 5301, honest)],
                honest,
                [],
                (partial(to_node, mac, ends), bridge(scene)),
            )
            async with asyncio.timeout(seconds(10)):
                heard = await asyncio.get_running_loop().sock_recv(listener, 65535)
            assert heard == honest, f"as {source}"
            while heard == honest:  # it was sent several times
                try:
                    heard = listener.recv(65535)
                except BlockingIOError:
                    break
            assert heard == honest, f"as {source}"


@pytest.mark.parametrize("family", BOTH)
async def test_only_the_host_and_the_switch_can_use_the_addresses_between_them(scene: Scene, family: str) -> None:
    """nodePortAddresses allows NodePorts on Node b only; 169.254.169.110 must not lead to them on Node a."""
    ends = BOTH[family]
    for where in (NODE_PORT_ADDRESS, VIRTUAL_CLIENT, NODE_STAND_IN):
        address = str(where[family_of(ip_address(ends.bob))])
        sign = token()
        frame = from_mallory(tcp_syn(ends.mallory, address, (1234, NODE_PORT), sign))
        at = [scene.pod("bob"), scene.node("a", "windlass-gw0")]
        assert not await arrived(scene.pod("mallory"), [frame], sign, at, control_of_mallory(scene, ends)), "from a Pod"
        mac, sign = scene.mac_of("b"), token()
        frame = ethernet(mac, OUTSIDER_MAC, ip_type(address), tcp_syn(ends.outsider, address, (1234, NODE_PORT), sign))
        at = [scene.pod("bob"), scene.node("b", "br-int")]
        assert not await arrived(scene.outsider, [frame], sign, at, (partial(to_node, mac, ends), bridge(scene))), (
            "from the wire"
        )
