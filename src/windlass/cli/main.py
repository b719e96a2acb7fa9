"""The root of the command. Subcommands are imported when called, so that each starts as quickly as it can."""

from __future__ import annotations

import importlib

import click

import windlass

_COMMANDS = {
    "agent": "run the agent on a Node",
    "install-cni": "put the CNI plugin and its configuration where the container runtime looks",
    "probe": "for kubelet: does the agent of this Node answer, is it ready?",
    "preflight": "what would hurt if Windlass took this Node's NIC?",
    "release": "give this Node's NIC back, and leave nothing of Windlass",
    "status": "is this Node's network in place, and what is wrong?",
    "flows": "the flows that the agent of this Node wants in the switch, with reasons",
    "log-level": "show or change how much the agent of this Node logs, while it runs",
    "support-bundle": "write one file about this Node, without secrets, for those who help you",
    "lab": "try a cluster's network on this machine, with real packets",
    "render": "print the flows a Node would get, from manifests alone",
    "bench": "measure, each figure beside its floor in the same run",
}


class _Lazy(click.Group):
    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = name.replace("-", "_")
        command = getattr(importlib.import_module(f"windlass.cli.{module}"), module)
        if not isinstance(command, click.Command):
            raise TypeError(f"windlass.cli.{module}.{module} is not a command")
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(windlass.__version__, message="windlass %(version)s")
def main() -> None:
    """The network of a Kubernetes Node on Open vSwitch.

    \b
    Try a cluster on this machine:   windlass lab run scenarios/tour
    See the flows of a Node:         windlass render scenarios/tour --node node-1 --why
    Run the agent on a Node:         windlass agent --config /etc/windlass/windlass.yaml
    """
