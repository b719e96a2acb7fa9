"""The metrics of a real agent: their values after certain events, and that a scrape does not disturb the agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fed_agents import FedAgent, endpoints, fed_agent, service
from prometheus_client.parser import text_string_to_metric_families

import windlass
from switches import requires_ovs
from windlass.agent.areas import Area
from windlass.agent.expositions import Exposition
from windlass.agent.metrics import METRICS, SLI_BUCKETS, MetricKind
from windlass.agent.samples import PATIENCE

ROOT = Path(__file__).parents[2]
PROMTOOL = Path(
    subprocess.run([ROOT / "tools" / "fetch-promtool", "--where"], check=True, capture_output=True, text=True).stdout[
        :-1
    ]
)
PLUGIN = ROOT / "build" / "cni" / "windlass-cni"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(exposition: Exposition) -> Series:
    return parsed((await exposition.text()).decode())


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


# What is declared ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric):
    assert metric.name.startswith("windlass_")
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    assert metric.kind is not MetricKind.HISTOGRAM or metric.name.endswith("_seconds")
    assert metric.meaning[0].isupper() or metric.meaning[0].isdecimal()
    assert not metric.meaning.endswith(".")


def test_the_buckets_of_the_service_level_are_those_of_kube_proxy():
    assert (SLI_BUCKETS[:3], SLI_BUCKETS[60:63], SLI_BUCKETS[-2:]) == (
        (0.25, 0.5, 1.0),
        (59.0, 60.0, 65.0),
        (270.0, 300.0),
    )
    assert len(SLI_BUCKETS) == 2 + 59 + 12 + 7
    assert list(SLI_BUCKETS) == sorted(set(SLI_BUCKETS))


# In an agent ---------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[FedAgent]:
    async with fed_agent(ipam_plugin="/usr/lib/cni/host-local") as agent:
        yield agent


@requires_ovs
async def test_every_series_is_declared_and_every_gauge_and_counter_is_there(fed):
    families = list(text_string_to_metric_families((await fed.agent.exposition.text()).decode()))
    declared = {metric.name.removesuffix("_total"): metric for metric in METRICS.values()}
    own = {family.name: family for family in families if not family.name.startswith("process_")}
    assert own.keys() <= declared.keys()
    for name, family in own.items():
        assert family.type == declared[name].kind.value
        assert family.documentation == declared[name].meaning
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared[name].labels)
    # These need an API server, rules that deny something, or a Windows Node.
    absent = {
        "windlass_watch_age_seconds",
        "windlass_watch_restarts",
        "windlass_policy_denials",
        "windlass_forwarded_refusals",
    }
    assert declared.keys() - own.keys() == absent


@requires_ovs
async def test_versions_connections_and_areas(fed):
    series = await scraped(fed.agent.exposition)
    (build,) = [dict(labels) for name, labels in series if name == "windlass_build_info"]
    assert build["version"] == windlass.__version__
    assert (await fed.command("ovs-vswitchd", "--version")).split("\n")[0].endswith(f" {build['openvswitch']}")
    assert value(series, "windlass_conntrack_entries_limit", table="openvswitch") >= 1000
    assert value(series, "windlass_conntrack_entries", table="openvswitch") >= 0
    assert value(series, "windlass_conntrack_failures_total", table="openvswitch", reason="full") == 0
    assert value(series, "windlass_switch_connected") == 1
    assert {dict(labels)["area"] for name, labels in series if name == "windlass_problems"} == set(Area)


@requires_ovs
async def test_a_changed_slice_is_timed_from_its_trigger_to_the_switch(fed):
    await fed.holds(service("web", "10.96.0.10"), endpoints("web", "172.16.2.5"))
    before = await scraped(fed.agent.exposition)
    assert value(before, "windlass_network_programming_duration_seconds_count") == 0
    await fed.reaches(fed.source.put(endpoints("web", "172.16.2.6"), triggered=(time.time() - 100.0,)))
    after = await scraped(fed.agent.exposition)
    name = "windlass_network_programming_duration_seconds"
    assert value(after, f"{name}_count") == 1
    assert value(after, f"{name}_sum") >= 100.0
    assert value(after, f"{name}_bucket", le="95.0") == 0
    assert value(after, "windlass_apply_duration_seconds_count") == 1 + value(
        before, "windlass_apply_duration_seconds_count"
    )


@requires_ovs
async def test_a_change_is_timed_when_the_switch_holds_it(fed):
    """A change that arrives while the switch is down is complete only when the switch is back."""
    await fed.holds(service("web", "10.96.0.10"), endpoints("web", "172.16.2.5"))
    os.kill(daemon_of(fed), signal.SIGTERM)
    assert await fed.agent.status.wait_until(lambda: not fed.agent.status.ready, 20)
    revision = fed.source.put(endpoints("web", "172.16.2.6"), triggered=(time.time(),))
    name = "windlass_network_programming_duration_seconds_count"
    series = await scraped(fed.agent.exposition)
    assert value(series, name) == 0
    assert value(series, "windlass_switch_connected") == 0
    await fed.switch.restart()
    await fed.reaches(revision)
    assert value(await scraped(fed.agent.exposition), name) == 1


@requires_ovs
async def test_a_scrape_omits_only_the_metrics_of_a_hanging_switch(fed):
    pid, ticks = daemon_of(fed), 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(PATIENCE / 20)
            ticks += 1

    os.kill(pid, signal.SIGSTOP)
    ticking = asyncio.create_task(tick())
    try:
        series = await scraped(fed.agent.exposition)
    finally:
        os.kill(pid, signal.SIGCONT)
        ticking.cancel()
    assert value(series, "windlass_ready") == 1
    assert not [labels for name, labels in series if ("table", "openvswitch") in labels]
    assert [dict(labels)["openvswitch"] for name, labels in series if name == "windlass_build_info"] == [""]
    assert ticks > 1, "others of this process had their turn meanwhile"


@requires_ovs
@pytest.mark.skipif(not PROMTOOL.exists(), reason=f"{PROMTOOL}: tools/fetch-promtool fetches it")
async def test_promtool_has_no_complaints_about_the_metrics(fed):
    process = await asyncio.create_subprocess_exec(
        *(PROMTOOL, "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(await fed.agent.exposition.text())
    assert (process.returncode, said.decode()) == (0, "")


def daemon_of(fed: FedAgent) -> int:
    return int((fed.switch.folder / "ovs-vswitchd.pid").read_text())


@requires_ovs
@pytest.mark.skipif(not PLUGIN.exists(), reason=f"{PLUGIN}: tools/setup builds it")
async def test_requests_of_the_plugin_are_counted_by_command_and_kind_of_error(fed):
    await attach(fed, "ADD", CNI_NETNS="/run/netns/nowhere")
    await attach(fed, "DANCE")
    await attach(fed, "STATUS")
    series = await scraped(fed.agent.exposition)
    errors = "windlass_cni_errors_total"
    assert value(series, errors, command="ADD", error="unknown_container") == 1
    assert value(series, errors, command="unknown", error="invalid_environment") == 1
    assert len([labels for name, labels in series if name == errors]) == 2
    for command in ("ADD", "STATUS", "unknown"):
        assert value(series, "windlass_cni_duration_seconds_count", command=command) == 1


async def attach(fed: FedAgent, command: str, **variables: str) -> None:
    """Calls the plugin as a container runtime does; the call may fail."""
    config = {"cniVersion": "1.1.0", "name": "windlass", "type": "windlass-cni"}
    process = await asyncio.create_subprocess_exec(
        *(PLUGIN,),
        env={
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": "c1",
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
            **variables,
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    await process.communicate(json.dumps({**config, "agentSocket": str(fed.agent.config.cni_socket)}).encode())
