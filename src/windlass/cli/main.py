"""The root command. A subcommand is imported when it is called, so that each starts quickly."""

from __future__ import annotations

import importlib

import click

import windlass

_COMMANDS = {
    "agent": "Run the agent on a Node.",
    "install-cni": "Install the CNI plugin and its configuration on a Node.",
    "probe": "Check liveness or readiness of the agent, for kubelet.",
    "preflight": "Check whether this Node is ready for Windlass.",
    "release": "Remove Windlass from this Node and give its NIC back.",
    "status": "Show whether this Node is ready, and every problem.",
    "flows": "Print the flows that the agent has programmed, with reasons.",
    "log-level": "Show or change the log level of the running agent.",
    "support-bundle": "Write the state of this Node into one file, without secrets.",
    "lab": "Run clusters on this machine, with real packets.",
    "render": "Print the flows of a Node from manifests, without a cluster.",
    "policy": "Explain what traffic policies allow, and the effect of a change.",
    "bench": "Run a benchmark.",
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


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(windlass.__version__, message="windlass %(version)s")
def main() -> None:
    """The network of a Kubernetes Node on Open vSwitch.

    \b
    Try a cluster on this machine:    windlass lab run scenarios/tour
    See the flows of a Node:          windlass render scenarios/tour --node node-1 --why
    Check a Node before installing:   windlass preflight
    Run the agent on a Node:          windlass agent --config /etc/windlass/windlass.yaml
    """
