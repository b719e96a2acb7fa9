"""The CNI specification 1.1, sentence by sentence, with the real plugin, socket, agent's handler and host-local."""

from __future__ import annotations

import asyncio

import pytest

from windlass.cni.configurations import SUPPORTED_VERSIONS


@pytest.fixture
def run(served, plugin):
    async def runs(command, container="c1", **rest):
        return await served.run(plugin, command, container, **rest)

    return runs


async def test_add_must_output_a_result_structure(run, served):
    outcome = await run("ADD")
    assert outcome.exit_code == 0
    result = outcome.json
    assert result["cniVersion"] == "1.1.0"
    assert set(result) == {"cniVersion", "interfaces", "ips", "routes", "dns"}
    inside = result["interfaces"][result["ips"][0]["interface"]]
    assert inside["name"] == "eth0"
    assert inside["sandbox"] == str(served.netns), "the value passed via CNI_NETNS"
    assert "sandbox" not in result["interfaces"][0], "empty if on the host"


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
async def test_the_result_has_the_same_version_as_supplied_on_input(run, version):
    assert (await run("ADD", config={"cniVersion": version})).json["cniVersion"] == version


async def test_version_outputs_the_version_specified_on_input_and_those_supported(run):
    """The specification 1.1, "VERSION Success"; agent and plugin say the same."""
    for version in SUPPORTED_VERSIONS:
        outcome = await run("VERSION", config={"cniVersion": version})
        assert outcome.json == {"cniVersion": version, "supportedVersions": list(SUPPORTED_VERSIONS)}


async def test_add_twice_gives_the_same_attachment(run, served):
    first = await run("ADD")
    assert await run("ADD") == first
    assert len(served.host.links) == 1


async def test_prev_result_must_be_passed_through(run):
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "tap0"}], "dns": {"nameservers": ["192.0.2.53"]}}
    result = (await run("ADD", config={"prevResult": previous})).json
    assert result["interfaces"][0] == {"name": "tap0"}
    assert result["dns"] == {"nameservers": ["192.0.2.53"]}


async def test_dns_of_the_runtime_config_is_in_the_result(run):
    given = {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": ["ndots:5"]}
    result = (await run("ADD", config={"runtimeConfig": {"dns": given}})).json
    assert result["dns"] == {
        "nameservers": ["10.96.0.10"],
        "search": ["svc.cluster.local"],
        "options": ["ndots:5"],
    }


async def test_plugins_must_accept_multiple_del_calls_for_the_same_pair(run, served):
    await run("ADD")
    for netns in (str(served.netns), "", ""):
        outcome = await run("DEL", CNI_NETNS=netns)
        assert (outcome.exit_code, outcome.output) == (0, "")
    assert served.is_empty()


async def test_del_completes_even_if_the_namespace_no_longer_exists(run, served):
    await run("ADD")
    served.netns.unlink()
    served.host.links.clear()
    assert (await run("DEL")).exit_code == 0
    assert served.is_empty()


async def test_del_should_return_without_error_if_prev_result_is_empty(run, served):
    await run("ADD")
    assert (await run("DEL", config={"prevResult": {}})).exit_code == 0
    assert served.is_empty()


async def test_check_immediately_after_add_succeeds_without_output(run):
    result = (await run("ADD")).json
    outcome = await run("CHECK", config={"prevResult": result})
    assert (outcome.exit_code, outcome.output) == (0, "")


async def test_check_should_return_an_error_if_a_resource_is_missing(run, served):
    result = (await run("ADD")).json
    served.host.links.clear()
    outcome = await run("CHECK", config={"prevResult": result})
    assert outcome.exit_code == 1
    assert outcome.json["details"].endswith("is gone")


async def test_status_exits_with_zero_if_ready_and_with_code_50_if_not(run, served):
    assert (await run("STATUS")).exit_code == 0
    served.agent.network = None
    outcome = await run("STATUS")
    assert (outcome.exit_code, outcome.json["code"]) == (1, 50)


async def test_gc_removes_attachments_that_are_not_in_the_list(run, served):
    for container in ("c1", "c2"):
        await run("ADD", container)
    keep = [{"containerID": "c1", "ifname": "eth0"}]
    outcome = await run("GC", config={"cni.dev/valid-attachments": keep})
    assert (outcome.exit_code, outcome.output) == (0, "")
    assert list(served.agent.pods) == ["c1"]
    assert len(served.held()) == 2


async def test_errors_have_version_code_message_and_details_on_standard_output(run):
    outcome = await run("ADD", CNI_IFNAME="")
    assert outcome.exit_code != 0
    assert set(outcome.json) == {"cniVersion", "code", "msg", "details"}
    assert outcome.json["code"] == 4
    assert "CNI_IFNAME" in outcome.json["msg"], "the error message must contain the names of invalid variables"


async def test_plugins_must_handle_being_executed_concurrently_across_different_containers(run, served):
    outcomes = await asyncio.gather(*(run("ADD", f"c{number}", pod=f"web-{number}") for number in range(20)))
    addresses = {ip["address"] for outcome in outcomes for ip in outcome.json["ips"]}
    assert len(addresses) == 40
    outcomes = await asyncio.gather(*(run("DEL", f"c{number}") for number in range(20)))
    assert {outcome.exit_code for outcome in outcomes} == {0}
    assert served.is_empty()
