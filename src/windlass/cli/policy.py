"""`windlass policy`: what policies allow and which rules say so, from manifests, without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from pathlib import Path

import click
import msgspec

from windlass.cli import agent_client
from windlass.cli.outputs import UNUSABLE, fail, show
from windlass.cli.policy_tables import PeerNames, counter_lines, difference_lines, explanation_lines, listed
from windlass.lab.scenarios import policy_manifests
from windlass.lab.scenarios.manifest_objects import ManifestObjects
from windlass.lab.scenarios.policy_manifests import PolicyManifests, few
from windlass.lab.scenarios.scenario_files import ScenarioError
from windlass.policy.absent_pods import idle_policies, partly_judged_policies, unjudged_policies
from windlass.policy.connectivity import Connectivity, EndKind
from windlass.policy.counters import PolicyCounter
from windlass.policy.explanations import (
    AskedPeers,
    ConnectivityDifference,
    PodExplanation,
    compare,
    explain,
)

_STANDARD_INPUT = Path("-")


class _ManifestPath(click.Path):
    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        if not str(value):
            self.fail("it is empty; give a file, a directory, or - for standard input.", parameter, context)
        return Path(str(value))


_PATH = _ManifestPath()


class _NotFound(Exception):
    """The message says what is not in the manifests, and what is."""


@click.group()
def policy() -> None:
    """Explain NetworkPolicies and ClusterNetworkPolicies: what they allow, and which rules decide.

    \b
    Examples:
      windlass policy explain shop/web docs/examples/shop
      windlass policy diff docs/examples/shop docs/examples/shop-change
    """


@policy.command("explain", short_help="Explain what may reach a Pod, and what it may reach.")
@click.argument("pod")
@click.argument("path", type=_PATH, required=False)
@agent_client.options
@click.option("--peer", help="Only the traffic with this Pod (namespace/name), Node or IP address.")
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def explain_pod(
    pod: str, path: Path | None, socket: Path | None, config: Path | None, peer: str | None, as_json: bool
) -> None:
    """Explain what may reach POD, what it may reach, and which rules decide.

    POD is namespace/name, or the name of a Pod in the namespace `default`. PATH is a file or directory of manifests
    (Pods, Nodes, Namespaces and policies), a scenario, or `-` for standard input. Of a scenario, the command explains
    the state after the last step. Without PATH, it asks the running agent of this Node, which knows its own Pods and
    the Pods that their policies select. A Deployment or another workload counts as a Pod of the same name, with other
    replicas. Traffic passes if both the egress policies of its source and the ingress policies of its destination
    allow it. Pods that are treated alike share a line. Warnings on standard error say what is ignored or not shown,
    for example fields that policies do not have.

    \b
    Examples:
      windlass policy explain shop/web docs/examples/shop
      windlass policy explain shop/web
      windlass policy explain shop/web docs/examples/shop --peer shop/cart
      windlass policy explain shop/web docs/examples/shop --peer 203.0.113.9 --json
      kubectl get pods,nodes,namespaces,networkpolicies,clusternetworkpolicies -A -o json |
        windlass policy explain shop/web -

    Leave out clusternetworkpolicies if the cluster does not have this kind.

    Exit status: 0 explained, 2 no agent answers, the manifests cannot be read, or there is no such Pod or peer.
    """
    try:
        [manifests] = policy_manifests.states(_read(path) if path else _ask_agent(socket, config))
        state = _JudgedState(manifests, is_from_agent=path is None)
        key = state.pod(pod)
        explanation = explain(state.connectivity, key, None if peer is None else state.peers(key, peer))
    except (ScenarioError, agent_client.NoAnswer, _NotFound) as error:
        fail("policy explain", error)
    _warn("policy explain", state.warnings)
    if as_json:
        _show_json(explanation, state.warnings)
        return
    show(explanation_lines(explanation, PeerNames(state.connectivity)))


@policy.command("diff", short_help="Show what traffic a change allows and denies.")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the difference as JSON.")
def diff_states(old: Path, new: Path, as_json: bool) -> None:
    """Show the traffic that the manifests in NEW allow and those in OLD deny, and the reverse.

    The command needs no cluster: use it to compare the manifests of a pull request with those of the main branch. OLD
    and NEW are files or directories; one of them may be `-` for standard input. The command lists only the effect on
    traffic, whether policies, labels or named ports have changed. A Deployment or another workload counts as a Pod of
    the same name, with other replicas. Pods that only one side has are named, and their traffic is not compared.

    \b
    Examples:
      windlass policy diff docs/examples/shop docs/examples/shop-change
      kubectl kustomize overlays/production | windlass policy diff main.yaml -

    Exit status: 0 no change of connectivity, 1 some changes, 2 the manifests cannot be read, they have policies and no
    Pod or workload is in both, or there are no changes, but a policy or rule that differs selects no Pod on either
    side, so nothing is proven about it.
    """
    if old == new == _STANDARD_INPUT:
        fail("policy diff", "only one of OLD and NEW can be standard input")
    try:
        before, now = map(_JudgedState, policy_manifests.states(_read(old), _read(new)))
    except ScenarioError as error:
        fail("policy diff", error)
    found = compare(before.connectivity, now.connectivity)
    has_common_pods = bool(before.pods & now.pods)
    warnings = _of_both(before.warnings, now.warnings)
    if not has_common_pods:
        warnings.append("no Pod or workload is in both OLD and NEW, so no traffic was compared")
    if unjudged := unjudged_policies(before.connectivity, now.connectivity):
        warnings.append(f"nothing is proven about the change of {few(unjudged)}")
    if partly := partly_judged_policies(before.connectivity, now.connectivity):
        warnings.append(f"the change of {few(partly)} concerns Pods that are in neither OLD nor NEW")
    _warn("policy diff", warnings)
    is_compared = has_common_pods or not (before.has_policies or now.has_policies)
    is_proven = not (unjudged or partly)
    status = 1 if found else 0 if is_proven else UNUSABLE
    if as_json:
        _show_json(found, warnings)
    elif found or (is_compared and is_proven):
        show(difference_lines(found, PeerNames(now.connectivity)))
    sys.exit(status if is_compared else UNUSABLE)


@policy.command("counters", short_help="Show how many packets policies allowed or denied on this Node.")
@click.argument("pod", required=False)
@agent_client.options
@click.option("--json", "as_json", is_flag=True, help="Print the counters as JSON.")
def count_packets(pod: str | None, socket: Path | None, config: Path | None, as_json: bool) -> None:
    """Show how many packets policies allowed or denied, by Pod and peers, and which rules decided.

    The agent of this Node reads the counters of its switch, for all Pods or for POD (namespace/name). A counter
    includes all packets in the direction of a connection's first packet. It starts from 0 again when the policies of
    the Pod change. Counters of 0 are left out.

    \b
    Examples:
      windlass policy counters
      windlass policy counters shop/web --json

    Exit status: 0 counted, 2 no agent answers, or the Pod is not on this Node.
    """
    asked = {"pod": pod if "/" in pod else f"default/{pod}"} if pod else {}
    try:
        answer = agent_client.ask(agent_client.socket_of(socket, config), "/v1/policy-counters", asked)
    except agent_client.NoAnswer as error:
        fail("policy counters", error)
    if as_json:
        click.echo(msgspec.json.format(answer))
        return
    counters = msgspec.json.decode(answer, type=list[PolicyCounter])
    if counters:
        show(counter_lines(counters))
    else:
        click.echo("policies have allowed or denied no packets yet")


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> ManifestObjects:
    if path == _STANDARD_INPUT:
        return policy_manifests.objects_in(sys.stdin.buffer.read(), "standard input")
    try:
        return policy_manifests.objects_at(path)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None


def _ask_agent(socket: Path | None, config: Path | None) -> ManifestObjects:
    objects = agent_client.ask(agent_client.socket_of(socket, config), "/v1/policy-objects")
    return policy_manifests.objects_in(objects, "the answer of the agent")


class _JudgedState:
    """One state of a cluster, and what a user's names mean in it."""

    def __init__(self, manifests: PolicyManifests, *, is_from_agent: bool = False) -> None:
        self.is_from_agent = is_from_agent
        self.connectivity = Connectivity(manifests.world)
        self.pods = {end.name for end in self.connectivity.ends if end.kind is EndKind.POD}
        self._manifests = manifests

    @property
    def has_policies(self) -> bool:
        return bool(self._manifests.world.network_policies or self._manifests.world.cluster_network_policies)

    @property
    def warnings(self) -> list[str]:
        refused = [f"{name}, {one}" for name, problems in self.connectivity.problems.items() for one in problems]
        if self.is_from_agent:  # it does not know all Pods, and leaves out the apiVersion
            return [*refused, *self._manifests.warnings]
        return [*self._manifests.mistakes, *refused, *self._manifests.warnings, *self._idle_policies()]

    def _idle_policies(self) -> Iterator[str]:
        idle = sorted(idle_policies(self.connectivity))
        pod = "Pod of the manifests" + (" with an address of its own" if self._manifests.on_host_network else "")
        if len(idle) == 1:
            yield f"{idle[0]} selects no {pod}, so its effect is not shown"
        elif idle:
            yield f"{few(idle)} select no {pod}, so their effect is not shown"

    def pod(self, name: str) -> str:
        """A Pod without a namespace is one of `default`, as in kubectl."""
        key = name if "/" in name else f"default/{name}"
        if key not in self.pods:
            self._refuse_without_address(key, "")
            if _is_address(name):
                raise _NotFound(f"{name} is an IP address; POD must be namespace/name")
            if not self.pods:
                what = (
                    "the agent knows no Pod" if self.is_from_agent else "the manifests contain no Pod and no workload"
                )
                raise _NotFound(f"there is no Pod {key}: {what} with an address of its own")
            known = listed(sorted(self.pods))
            raise _NotFound(f"there is no Pod {key} with an address of its own; known: {known}")
        return key

    def peers(self, pod: str, asked: str) -> AskedPeers:
        """The Pod, Node or address; an error if the Pod has no address of its IP version."""
        peers = self._found(asked)
        versions = {end.address.version for end in peers.ends}
        own = {end.address.version for end in self.connectivity.machines(versions) if end.name == pod}
        if not versions & own:
            raise _NotFound(f"--peer {asked}: {pod} has no {' or '.join(f'IPv{one}' for one in versions)} address")
        return peers

    def _found(self, asked: str) -> AskedPeers:
        if _is_address(asked):
            return AskedPeers((self.connectivity.end_at(ip_address(asked)),), are_addresses=True)
        machines = [end for end in self.connectivity.ends if end.kind is not EndKind.NETWORK]
        if found := [end for end in machines if end.name in {asked, f"default/{asked}"}]:
            return AskedPeers(tuple(found))
        self._refuse_without_address(asked if "/" in asked else f"default/{asked}", f"--peer {asked}: ")
        known = listed(sorted({end.name for end in machines}))
        raise _NotFound(f"--peer {asked or repr(asked)}: neither a Pod nor a Node nor an IP address; known: {known}")

    def _refuse_without_address(self, key: str, where: str) -> None:
        node, phase = self._manifests.on_host_network.get(key), self._manifests.ended.get(key)
        if node is not None:
            instead = f"its Node {node}" if node else "its Node"
            raise _NotFound(f"{where}Pod {key} uses hostNetwork and has no address of its own; ask about {instead}")
        if phase is not None:
            raise _NotFound(f"{where}Pod {key} has ended ({phase}) and has no address")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _of_both(old: Collection[str], new: Collection[str]) -> list[str]:
    """The lines of both sides, each with its side unless both have it."""
    shared = [line for line in old if line in new]
    return [
        *shared,
        *(f"OLD: {line}" for line in old if line not in shared),
        *(f"NEW: {line}" for line in new if line not in shared),
    ]


def _show_json(answer: PodExplanation | ConnectivityDifference, warnings: Collection[str]) -> None:
    content = {**msgspec.to_builtins(answer), "warnings": warnings}
    click.echo(msgspec.json.format(msgspec.json.encode(content)))


def _warn(command: str, lines: Collection[str]) -> None:
    for line in lines:
        click.echo(f"windlass {command}: {line}", err=True)
