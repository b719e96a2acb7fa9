"""Runs `windlass policy` in this process, with manifests that tests put together."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from windlass.cli.main import main


def run(*arguments: object, **options: object) -> Result:
    return CliRunner().invoke(main, ["policy", *map(str, arguments)], **options)


def written(*objects: dict) -> str:
    return "".join(f"---\n{json.dumps(one)}\n" for one in objects)


def workload(name: str, kind: str = "Deployment", **labels: str) -> dict:
    template = {"metadata": {"labels": labels}}
    spec = {"jobTemplate": {"spec": {"template": template}}} if kind == "CronJob" else {"template": template}
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def documents(*policies: dict, pods: int = 2) -> list[dict]:
    made = [
        {"kind": "Pod", "metadata": {"name": f"p{i}", "labels": {"app": f"a{i}"}}, "spec": {"nodeName": "n"}}
        for i in range(pods)
    ]
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "spec": {"podCIDRs": ["10.1.0.0/16", "fd00:1::/64"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]},
    }
    return [node, *made, *policies]


def network_policy(**spec: object) -> dict:
    header = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "policy"}}
    return {**header, "spec": {"podSelector": {}, **spec}}
