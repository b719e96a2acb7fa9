"""Clients of NodePorts that the host forwards itself: traffic policy, policies and affinity by the client's address."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from host_states import STATE

from windlass.agent.samples import forwarded
from windlass.host.forwarded_clients import ForwardedClient, ForwardedClients, ForwardedDestination, Refusal
from windlass.model.families import Family
from windlass.model.nodes import AttachedPod, NodeState, OperatingSystem
from windlass.model.policies import (
    DENY_UNTIL_KNOWN,
    Direction,
    NodePolicies,
    PeerEntry,
    PodPolicies,
    PodPolicy,
    PolicySubject,
)
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, ports
from windlass.model.prefixes import prefix_of, prefix_text
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedPort, ServedService
from windlass.pipeline.reserved import NODE_PORT_ADDRESS

NODE_PORT = 30080
BY_THE_SWITCH = ForwardedDestination(NODE_PORT_ADDRESS[Family.IPV4], NODE_PORT)
NEAR, ALSO_NEAR, FAR = "10.0.1.7", "10.0.1.8", "10.0.2.7"  # two Pods of this Node, one of another
OUTSIDE = "203.0.113.9"
HTTP = ports(Protocol.TCP, 8080, 8080)
BLOCK, EXCEPTION = "203.0.113.0/24", "203.0.113.128/25"


def pod(name: str, address: str) -> AttachedPod:
    return AttachedPod("shop", name, f"container-{name}", name, 10, "02:00:00:00:00:01", (ip_address(address),))


def served(*endpoints: str, local_only: bool = False, protocol: Protocol = Protocol.TCP, affinity: int = 0):
    every = tuple(Endpoint.at(ip_address(one), 8080, local=one != FAR) for one in endpoints)
    port = ServedPort(
        "http",
        protocol,
        Family.IPV4,
        (Frontend(Reach.NODE_PORT, None, NODE_PORT, local_only),),
        every,
        tuple(one for one in every if one.local),
        anywhere=bool(every),
        affinity_seconds=affinity,
        serving=every,
    )
    return {"shop/web": ServedService("shop", "web", (port,), ())}


def state(services, policies: NodePolicies | None = None) -> NodeState:
    attached = {one.container_id: one for one in (pod("near", NEAR), pod("also-near", ALSO_NEAR))}
    node = replace(STATE.node, other_addresses=(ip_address("198.51.100.5"),))
    return replace(STATE, node=node, pods=attached, services=services, policies=policies or NodePolicies())


def admitting(block: str = BLOCK, *, allowed=HTTP, pods=("near",)) -> NodePolicies:
    """These Pods accept these ports from the block, and nothing else."""
    subject = PolicySubject(Direction.INGRESS, 7, NO_PORTS, {1: allowed, 2: NO_PORTS})
    blocks = {block: 1, EXCEPTION: 2}
    entries = [PeerEntry(prefix_of(ip_network(network)), None, number) for network, number in blocks.items()]
    return NodePolicies(
        pods={f"shop/{name}": PodPolicies(ingress=PodPolicy(7)) for name in pods},
        subjects={PolicySubject.key_of(Direction.INGRESS, 7): subject},
        peers={prefix_text(one.prefix): one for one in entries},
    )


class Changing:
    """The state that the agent has now."""

    def __init__(self, first: NodeState | None) -> None:
        self.state = first
        self.denied: list[tuple[str, str]] = []
        self.clients = ForwardedClients(
            lambda: self.state, lambda _, client, one: self.denied.append((str(client.address), str(one.address)))
        )

    def admit(self, client: str, port: int = 40000, protocol: Protocol = Protocol.TCP):
        return self.clients.admit(protocol, NODE_PORT, ForwardedClient(ip_address(client), port))

    def destination(self, client: str, port: int = 40000, protocol: Protocol = Protocol.TCP):
        admission = self.admit(client, port, protocol)
        return admission.destination if admission else None


def endpoint(address: str) -> ForwardedDestination:
    return ForwardedDestination(ip_address(address), 8080)


@pytest.mark.parametrize("own", ["127.0.0.1", "192.0.2.5", "198.51.100.5", "10.0.1.1"])
@pytest.mark.parametrize("services", [served(NEAR, FAR), served(FAR, local_only=True), served(NEAR, local_only=True)])
def test_the_host_itself_uses_all_endpoints_and_every_pod_accepts_it(own, services):
    assert Changing(state(services, admitting())).destination(own) == BY_THE_SWITCH


def test_without_policies_the_switch_chooses_among_all_endpoints():
    assert Changing(state(served(NEAR, FAR))).destination(OUTSIDE) == BY_THE_SWITCH
    # Policies of Pods that do not serve here change nothing.
    policies = admitting(pods=("also-near",))
    assert Changing(state(served(NEAR, FAR), policies)).destination("8.8.8.8") == BY_THE_SWITCH


def test_policy_local_serves_clients_from_outside_by_endpoints_of_this_node():
    node = Changing(state(served(NEAR, ALSO_NEAR, FAR, local_only=True)))
    chosen = {node.destination(OUTSIDE, port) for port in range(40000, 40100)}
    assert chosen == {endpoint(NEAR), endpoint(ALSO_NEAR)}


def test_policy_local_without_an_endpoint_on_this_node_refuses_clients_from_outside():
    node = Changing(state(served(FAR, local_only=True)))
    assert node.destination(OUTSIDE) is None
    assert node.clients.refused == {Refusal.NO_ENDPOINT: 1}


@pytest.mark.parametrize("local_only", [True, False])
def test_a_policy_judges_the_client_itself(local_only):
    node = Changing(state(served(NEAR, local_only=local_only), admitting()))
    assert node.destination(OUTSIDE) == endpoint(NEAR)
    for denied in ("203.0.113.200", "8.8.8.8"):
        assert node.destination(denied) is None
    assert node.clients.refused == {Refusal.POLICY: 2}
    assert node.denied == [("203.0.113.200", NEAR), ("8.8.8.8", NEAR)]


def test_a_policy_judges_the_port_of_the_endpoint_and_the_protocol():
    other_port = admitting(allowed=ports(Protocol.TCP, NODE_PORT, NODE_PORT))
    assert Changing(state(served(NEAR), other_port)).destination(OUTSIDE) is None
    udp = Changing(state(served(NEAR, protocol=Protocol.UDP), admitting()))
    assert udp.destination(OUTSIDE, protocol=Protocol.UDP) is None
    assert udp.destination(OUTSIDE, protocol=Protocol.TCP) is None  # no such NodePort


def test_endpoints_of_other_nodes_are_judged_there():
    node = Changing(state(served(NEAR, FAR), admitting()))
    assert {node.destination("8.8.8.8", port) for port in range(40000, 40050)} == {None, endpoint(FAR)}
    assert {node.destination(OUTSIDE, port) for port in range(40000, 40050)} == {endpoint(NEAR), endpoint(FAR)}


def test_a_pod_whose_labels_are_not_known_accepts_nobody_but_the_host():
    node = Changing(state(served(NEAR), NodePolicies(pods={"shop/near": DENY_UNTIL_KNOWN})))
    assert node.destination(OUTSIDE) is None
    assert node.destination("127.0.0.1") == BY_THE_SWITCH


def test_pods_of_this_node_are_refused_because_their_egress_policies_would_not_apply():
    node = Changing(state(served(NEAR)))
    assert node.destination(ALSO_NEAR) is None
    assert node.clients.refused == {Refusal.POD: 1}


def test_a_client_keeps_its_endpoint_by_session_affinity():
    every = [NEAR, ALSO_NEAR, FAR]
    node = Changing(state(served(*every, affinity=60)))
    clients = [f"203.0.113.{number}" for number in range(1, 100)]
    first = {client: node.destination(client, 40000) for client in clients}
    assert set(first.values()) == set(map(endpoint, every))
    assert {client: node.destination(client, 50000) for client in clients} == first
    node.state = state(served(NEAR, FAR, affinity=60))
    kept = {client: chosen for client, chosen in first.items() if chosen != endpoint(ALSO_NEAR)}
    assert {client: node.destination(client) for client in kept} == kept


def test_before_the_first_pass_and_without_such_a_node_port_all_are_refused():
    assert Changing(None).destination("127.0.0.1") is None
    assert Changing(state({})).destination("127.0.0.1") is None


async def test_refusals_are_a_metric_of_windows_nodes():
    node = Changing(state(served(FAR, local_only=True)))
    node.destination(OUTSIDE)
    assert await forwarded(node.clients)() == []
    node.state = replace(node.state, node=replace(node.state.node, os=OperatingSystem.WINDOWS))
    counted = {labels: value for _, value, labels in await forwarded(node.clients)()}
    assert counted == {(reason.value,): float(reason is Refusal.NO_ENDPOINT) for reason in Refusal}


# --- an open connection is judged again after each change ----------------------------------------------------------


def test_a_new_denial_ends_open_connections_and_others_go_on():
    node = Changing(state(served(NEAR, FAR)))
    denied, admitted, of_the_host = (node.admit(client) for client in ("8.8.8.8", OUTSIDE, "127.0.0.1"))
    assert all(one.holds() for one in (denied, admitted, of_the_host))
    node.state = state(served(NEAR, FAR), admitting())
    assert not denied.holds()  # it may be to the Pod: only the switch knows
    assert not denied.holds()
    assert admitted.holds()
    assert of_the_host.holds()


def test_a_connection_to_a_chosen_endpoint_ends_only_if_that_one_denies_it():
    node = Changing(state(served(NEAR, ALSO_NEAR, local_only=True)))
    open_ = {one.destination: one for one in (node.admit("8.8.8.8", port) for port in range(40000, 40050))}
    node.state = state(served(NEAR, ALSO_NEAR, local_only=True), admitting())
    assert not open_[endpoint(NEAR)].holds()
    assert open_[endpoint(ALSO_NEAR)].holds()


@pytest.mark.parametrize(("protocol", "stays"), [(Protocol.TCP, True), (Protocol.UDP, False)])
def test_udp_leaves_an_endpoint_that_no_longer_serves(protocol, stays):
    policies = admitting(allowed=ALL_PORTS)
    node = Changing(state(served(NEAR, protocol=protocol), policies))
    admission = node.admit(OUTSIDE, protocol=protocol)
    assert admission.destination == endpoint(NEAR)
    node.state = state(served(ALSO_NEAR, protocol=protocol), policies)
    assert admission.holds() == stays
