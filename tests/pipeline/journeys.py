"""Whole journeys of packets on one Node: through the switch, through the host if it forwards them, and back.

The host is as the agent sets it up: it forwards, replies for its own addresses, and knows which addresses are behind
the gateway. It replies by the gateway to packets that came from the gateway, unless it is a Windows host. All others
(Pods, peers, machines outside) accept what is addressed to them, and reply to the source that they saw.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from packets import ACK, FRAGMENT, SYN, SYN_ACK, Ends, Packet, Switch, Trip, ends

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.model.nodes import NodeState
from windlass.openflow.conditions import tunnel_source
from windlass.openflow.fields import ETH_DST, ETH_SRC, IN_PORT, IP_FRAG, LOCAL_PORT, TCP, TCP_FLAGS, Field, mac
from windlass.pipeline.datapaths import DATAPATHS, datapath_of
from windlass.pipeline.reserved import STAND_INS, VIRTUAL_MAC
from windlass.pipeline.routing import is_direct, tunnel_end
from windlass.program import program

TUNNEL_PORT, GATEWAY_PORT, UPLINK_PORT = 1, 2, 3
ROUTER_MAC = mac("02:00:0a:b0:19:01")
# By the host's routes to Services, their external addresses and the virtual addresses.
BEHIND_THE_GATEWAY: dict[Family, tuple[IPNetwork, ...]] = {
    Family.IPV4: (
        *map(IPv4Network, ("10.96.0.0/16", "203.0.113.0/24", "169.254.169.0/24")),
        STAND_INS[Family.IPV4],
    ),
    Family.IPV6: (
        *map(IPv6Network, ("fd00:10:96::/64", "2001:db8:203::/64", "fd00:169:254:169::/64")),
        STAND_INS[Family.IPV6],
    ),
}
LONGEST = 4  # trips through the switch; with more the packet loops


class Place(NamedTuple):
    """Where packets start and end."""

    name: str
    port: int  # of the switch; the host has two, and its routes choose

    def __str__(self) -> str:
        return self.name


HOST, WIRE, TUNNEL = Place("the host", LOCAL_PORT), Place("the wire", UPLINK_PORT), Place("the tunnel", TUNNEL_PORT)


def pod(number: int) -> Place:
    return Place(f"Pod web-{number}", 10 + number)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a packet arrived, and with which addresses. Without a place it was dropped, or refused by the agent."""

    place: Place | None
    ends: Ends
    trips: tuple[Trip, ...]  # through the switch

    @property
    def refused(self) -> bool:
        return self.trips[-1].told == [b"reject"]

    @property
    def dropped(self) -> bool:
        return self.place is None and not self.trips[-1].told

    @property
    def client(self) -> IPAddress:
        return self.ends.source

    @property
    def endpoint(self) -> tuple[IPAddress, int]:
        return self.ends.destination, self.ends.port


class Journeys:
    """Packets on one Node. Connections last from one journey to the next. `fragments`: all packets are fragments."""

    def __init__(self, state: NodeState, portless: Collection[int] = (), *, fragments: bool = False) -> None:
        self.node, self.peers = state.node, state.peers
        self.switch = Switch(program(state), portless, reassembles=datapath_of(state.node).reassembles)
        self._fragment = {IP_FRAG: FRAGMENT if fragments else 0}
        self._answers: set[Ends] = set()  # replies of the host to packets from the gateway
        self._macs = {found.ofport: mac(found.mac) for found in state.pods.values()}

    def converse(self, client: Place, asked: Ends, bucket: int = 0) -> Arrival:
        """A connection with requests and replies, checked. Returns how its first packet arrived."""
        first = self.send(client, asked, bucket=bucket)
        assert first.place is not None, f"{asked} was {'refused' if first.refused else 'dropped'}: {first.trips}"
        again = self.send(client, asked, bucket=bucket + 1)
        assert (again.place, again.ends) == (first.place, first.ends), (
            "a retransmission goes where the first packet went"
        )
        for flags in (SYN_ACK, ACK):
            answer = self.send(first.place, first.ends.back, flags)
            assert (answer.place, answer.ends) == (client, asked.back), (
                "the reply is from the address to which the client connected"
            )
            on = self.send(client, asked, ACK, bucket=bucket + 1)
            assert (on.place, on.ends) == (first.place, first.ends), "later packets go where the first one went"
        return first

    def send(self, place: Place, named: Ends, flags: int = SYN, bucket: int = 0) -> Arrival:
        packet = {**named.fields, **self._fragment, **({TCP_FLAGS: flags} if named.protocol == TCP else {})}
        if place == HOST:
            return self._carry(self._from_host(packet), bucket)
        source, destination = (ROUTER_MAC, mac(self.node.uplink_mac)) if place == WIRE else (VIRTUAL_MAC, VIRTUAL_MAC)
        frame = {IN_PORT: place.port, ETH_SRC: self._macs.get(place.port, source), ETH_DST: destination}
        outer = self._outer(named.source) if place == TUNNEL else {}
        return self._carry(packet | frame | outer, bucket)

    def _outer(self, pod: IPAddress) -> dict[Field, int]:
        """The tunnel by which a packet of this Pod arrives."""
        peer = next(one for one in self.peers.values() if any(pod in cidr for cidr in one.pod_cidrs.values()))
        end = tunnel_end(self.node, peer)
        assert end is not None, "the two Nodes have no address family in common"
        return {tunnel_source(end).field: int(end)}

    def _carry(self, packet: Packet, bucket: int) -> Arrival:
        trips: list[Trip] = []
        while len(trips) < LONGEST:
            trips.append(trip := self.switch.send(packet, bucket))
            if not trip.out:
                return Arrival(None, ends(packet), tuple(trips))
            ((port, packet),) = trip.out  # a packet never becomes two
            named = ends(packet)
            if port == UPLINK_PORT:
                return Arrival(WIRE, named, tuple(trips))
            if port == TUNNEL_PORT:
                return Arrival(TUNNEL, named, tuple(trips))
            if port in self._macs:
                assert packet[ETH_DST] == self._macs[port], "a Pod accepts only packets to its MAC"
                return Arrival(pod(port - 10), named, tuple(trips))
            assert packet[ETH_DST] == mac(self.node.gateway_mac if port == GATEWAY_PORT else self.node.uplink_mac)
            if self._is_own(named.destination):
                if port == GATEWAY_PORT and DATAPATHS[self.node.os].routes_replies:
                    self._answers.add(named.back)
                return Arrival(HOST, named, tuple(trips))
            packet = self._from_host(packet)
        raise AssertionError(f"the packet loops: {[trip.tables for trip in trips]}")

    def _from_host(self, packet: Packet) -> Packet:
        """By the gateway to addresses behind it and in reply to packets from it; otherwise by the bridge interface."""
        destination = ends(packet).destination
        assert not self._is_own(destination), f"the host sends to itself, bypassing the switch: {ends(packet)}"
        if self._is_behind_the_gateway(destination) or ends(packet) in self._answers:
            frame = {IN_PORT: GATEWAY_PORT, ETH_SRC: mac(self.node.gateway_mac), ETH_DST: VIRTUAL_MAC}
        else:
            frame = {IN_PORT: LOCAL_PORT, ETH_SRC: mac(self.node.uplink_mac), ETH_DST: ROUTER_MAC}
        plain = ends(packet).fields | self._fragment
        return {**plain, **({TCP_FLAGS: packet[TCP_FLAGS]} if TCP_FLAGS in packet else {}), **frame}

    def _is_own(self, address: IPAddress) -> bool:
        family = family_of(address)
        return address in {self.node.addresses[family].ip, self.node.gateway(family), *self.node.other_addresses}

    def _is_behind_the_gateway(self, address: IPAddress) -> bool:
        """Local Pods, Services, the virtual addresses, and Pods of peers that are reached by a tunnel."""
        family = family_of(address)
        if address in self.node.pod_cidrs[family] or any(address in network for network in BEHIND_THE_GATEWAY[family]):
            return True
        return any(
            address in peer.pod_cidrs[family] and not is_direct(self.node, peer, family) for peer in self.peers.values()
        )
