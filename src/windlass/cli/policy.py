"""`windlass policy`: what policies allow and which rules say so, from manifests, without a cluster."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from windlass.cli import agent_client
from windlass.cli.outputs import fail, show
from windlass.lab.scenarios import policy_manifests
from windlass.lab.scenarios.scenario_files import ScenarioError
from windlass.policy.connectivity import Connectivity, End, EndKind
from windlass.policy.counters import PolicyCounter
from windlass.policy.explanations import (
    ConnectivityDifference,
    DirectionExplanation,
    PeerGroup,
    PodExplanation,
    compare,
    explain,
)

_PATH = click.Path(path_type=Path)
_FEW = 4  # how many names of one namespace are listed
_WIDTH = 120  # columns, if the output is not a terminal


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
    """Explain what may reach POD (namespace/name), what it may reach, and which rules decide.

    PATH is a file or directory of manifests (Pods, Nodes, Namespaces and policies), a scenario, or `-` for standard
    input. Without PATH, the command asks the running agent of this Node, which knows its own Pods and the Pods that
    their policies select. A Deployment or another workload counts as one Pod of the same name. Traffic passes if both
    the egress policies of its source and the ingress policies of its destination allow it. Pods that are treated alike
    share a line.

    \b
    Examples:
      windlass policy explain shop/web docs/examples/shop
      windlass policy explain shop/web
      windlass policy explain shop/web docs/examples/shop --peer shop/cart
      windlass policy explain shop/web docs/examples/shop --peer 203.0.113.9 --json
      kubectl get pods,nodes,namespaces,networkpolicies -A -o yaml | windlass policy explain shop/web -

    Exit status: 0 explained, 2 no agent answers, the manifests cannot be read, or there is no such Pod or peer.
    """
    try:
        connectivity = _read(path) if path else _ask_agent(socket, config)
        explanation = explain(connectivity, _pod(connectivity, pod), _ends_of(connectivity, peer) if peer else None)
    except (ScenarioError, agent_client.NoAnswer, _NotFound) as error:
        fail("policy explain", error)
    _warn(connectivity, "policy explain")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation)))
        return
    show(_explanation_lines(explanation, _Names(connectivity)))


@policy.command("diff", short_help="Show what traffic a change allows and denies.")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the difference as JSON.")
def diff_states(old: Path, new: Path, as_json: bool) -> None:
    """Show the traffic that the manifests in NEW allow and those in OLD deny, and the reverse.

    The command needs no cluster: use it to compare the manifests of a pull request with those of the main branch. It
    lists only the effect on traffic, whether policies, labels or named ports have changed.

    \b
    Example:
      windlass policy diff docs/examples/shop docs/examples/shop-change

    Exit status: 0 no change of connectivity, 1 some changes, 2 the manifests cannot be read.
    """
    try:
        before, now = _read(old), _read(new)
    except ScenarioError as error:
        fail("policy diff", error)
    _warn(now, "policy diff")
    found = compare(before, now)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        show(_difference_lines(found, _Names(now)))
    sys.exit(1 if found else 0)


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
        show(_table(("POD", "PEERS", "PACKETS", "TRAFFIC", "VERDICT", "BECAUSE OF"), _counter_rows(counters)))
    else:
        click.echo("policies have allowed or denied no packets yet")


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Connectivity:
    if str(path) == "-":
        return Connectivity(policy_manifests.world_in(sys.stdin.buffer.read(), "standard input"))
    try:
        return Connectivity(policy_manifests.world_at(path))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None


def _ask_agent(socket: Path | None, config: Path | None) -> Connectivity:
    objects = agent_client.ask(agent_client.socket_of(socket, config), "/v1/policy-objects")
    return Connectivity(policy_manifests.world_in(objects, "the answer of the agent"))


def _warn(connectivity: Connectivity, command: str) -> None:
    for name, problems in connectivity.problems.items():
        for problem in problems:
            click.echo(f"windlass {command}: {name}, {problem}", err=True)


def _pod(connectivity: Connectivity, name: str) -> str:
    """A Pod without a namespace is one of `default`, as in kubectl."""
    key = name if "/" in name else f"default/{name}"
    pods = sorted({end.name for end in connectivity.ends if end.kind is EndKind.POD})
    if key not in pods:
        raise _NotFound(f"there is no Pod {key} with an address of its own; known: {_listed(pods) or 'none'}")
    return key


def _ends_of(connectivity: Connectivity, peer: str) -> list[End]:
    try:
        return [connectivity.end_at(ip_address(peer))]
    except ValueError:
        pass
    machines = [end for end in connectivity.ends if end.kind is not EndKind.NETWORK]
    if found := [end for end in machines if end.name in {peer, f"default/{peer}"}]:
        return found
    known = _listed(sorted({end.name for end in machines}))
    raise _NotFound(f"--peer {peer}: neither a Pod nor a Node nor an IP address; known: {known}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:10], *(["..."] if len(names) > 10 else [])])


# --- printing ---------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    cells: tuple[str, ...]
    is_good: bool  # green or red


class _Names:
    """Short names for many Pods: a whole namespace is one name."""

    def __init__(self, connectivity: Connectivity) -> None:
        self._pods: dict[str, int] = {}
        for pod in connectivity.world.pods:
            self._pods[pod.namespace] = self._pods.get(pod.namespace, 0) + 1
        self._nodes = len(connectivity.world.nodes)

    def of(self, peers: PeerGroup) -> str:
        parts = [*self._pods_in_words(peers.pods)]
        if len(peers.nodes) == self._nodes > 1:
            parts.append(f"all {self._nodes} Nodes")
        else:
            parts += [name if name.startswith("its own") else f"Node {name}" for name in peers.nodes[:_FEW]]
            parts += [f"{len(peers.nodes) - _FEW} more Nodes"] if len(peers.nodes) > _FEW else []
        parts += [_network_in_words(name) for name in peers.networks[:_FEW]]
        parts += [f"{len(peers.networks) - _FEW} more networks"] if len(peers.networks) > _FEW else []
        return ", ".join(parts)

    def _pods_in_words(self, pods: Iterable[str]) -> Iterator[str]:
        by_namespace: dict[str, list[str]] = {}
        for pod in pods:
            by_namespace.setdefault(pod.partition("/")[0] if "/" in pod else "", []).append(pod)
        for namespace, names in by_namespace.items():
            if len(names) == self._pods.get(namespace, 0) > 1:
                yield f"all {len(names)} Pods of {namespace}"
            else:
                yield from names[:_FEW]
                if len(names) > _FEW:
                    yield f"{len(names) - _FEW} more Pods of {namespace}"


def _network_in_words(name: str) -> str:
    return {"0.0.0.0/0": "any other IPv4 address", "::/0": "any other IPv6 address"}.get(name, name)


def _explanation_lines(explanation: PodExplanation, names: _Names) -> Iterator[str]:
    where = f" on {explanation.node}" if explanation.node else ""
    yield f"Pod {click.style(explanation.pod, bold=True)}{where}: {', '.join(explanation.addresses)}"
    for title, end, side in (
        ("What may reach it", "FROM", explanation.ingress),
        ("What it may reach", "TO", explanation.egress),
    ):
        yield ""
        yield click.style(title, bold=True)
        yield f"  selected by: {', '.join(side.policies) or 'no policy'}"
        yield from _table((end, "TRAFFIC", "VERDICT", "BECAUSE OF"), _explanation_rows(side, names))


def _explanation_rows(side: DirectionExplanation, names: _Names) -> Iterator[_Row]:
    for row in side.peers:
        peers = names.of(row.peers)
        for one in row.verdicts:
            cells = peers, one.traffic, one.verdict.lower(), "\n".join(one.rules)
            yield _Row(cells, one.verdict == "Allow")
            peers = ""  # only in the first line


def _counter_rows(counters: Iterable[PolicyCounter]) -> Iterator[_Row]:
    for one in counters:
        end = "from" if one.direction == "ingress" else "to"
        first = _listed(one.pods), f"{end} {_listed(one.peers) or 'all others'}"
        together = f"{one.packets:,}"
        for decision in one.decisions:
            packets = together if decision.packets is None else f"{decision.packets:,}"
            verdict = "allow" if decision.allows else "deny"
            yield _Row((*first, packets, decision.traffic, verdict, decision.rule), decision.allows)
            first, together = ("", ""), ""  # only in the first line


def _difference_lines(difference: ConnectivityDifference, names: _Names) -> Iterator[str]:
    if not difference:
        yield "no change of connectivity"
        return
    for pods, what in ((difference.added_pods, "only in NEW"), (difference.removed_pods, "only in OLD")):
        if pods:
            yield f"{what}: {'Pod' if len(pods) == 1 else f'{len(pods)} Pods'} {_listed(pods)}"
    rows = []
    for one in difference.changes:
        source, destination = names.of(one.source), names.of(one.destination)
        reasons = "\n".join(
            (*(f"now: {rule}" for rule in one.rules_now), *(f"was: {rule}" for rule in one.rules_before))
        )
        rows.append(_Row((one.change.lower(), source, destination, one.traffic, reasons), one.change == "Added"))
    if rows:
        yield from _table(("CHANGE", "FROM", "TO", "TRAFFIC", "BECAUSE OF"), rows)


def _table(header: tuple[str, ...], rows: Iterable[_Row]) -> Iterator[str]:
    """Columns are as wide as their content; if the terminal is too narrow, the widest columns share what is left."""
    listed = [*rows]
    needed = [
        max(len(line) for row in (header, *(r.cells for r in listed)) for line in row[i].split("\n"))
        for i in range(len(header))
    ]
    width = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout.isatty() else _WIDTH
    widths = _shared(needed, width - 2 * len(header))
    yield click.style(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(header, widths, strict=True)).rstrip(), dim=True
    )
    for row in listed:
        wrapped = [
            [
                part
                for line in cell.split("\n")
                for part in textwrap.wrap(line, w, break_long_words=False, break_on_hyphens=False) or [""]
            ]
            for cell, w in zip(row.cells, widths, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            cells = [lines[number] if number < len(lines) else "" for lines in wrapped]
            text = "  " + "  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()
            yield click.style(text, fg="green" if row.is_good else "red")


def _shared(needed: Sequence[int], available: int) -> list[int]:
    """The widths of the columns: the needed one, or an equal share of what the narrower columns leave."""
    widths, left, columns = dict.fromkeys(range(len(needed)), 0), available, len(needed)
    for index in sorted(range(len(needed)), key=lambda i: needed[i]):
        widths[index] = min(needed[index], max(left // columns, 12))
        left, columns = left - widths[index], columns - 1
    return [widths[index] for index in range(len(needed))]
