"""Garbage collection: attachments that the runtime no longer lists are removed."""

from __future__ import annotations

import asyncio

VALID = "cni.dev/valid-attachments"


async def test_garbage_collection_keeps_valid_attachments_and_removes_the_rest(node):
    for container in ("c1", "c2", "c3"):
        await node.call("ADD", container)
    node.host.links.pop(next(name for name, port in node.switch.ports.items() if port.container_id == "c3"))
    keep = [{"containerID": "c2", "ifname": "eth0"}, {"containerID": "unknown", "ifname": "eth0"}]
    node.restart()
    assert (await node.call("GC", config={VALID: keep}, CNI_CONTAINERID="", CNI_ARGS="")).output == ""
    assert [port.container_id for port in node.switch.ports.values()] == ["c2"]
    assert list(node.agent.pods) == ["c2"]
    assert len(node.host.links) == 1
    assert len(node.held()) == 2


async def test_garbage_collection_frees_unused_addresses(node):
    """An agent was killed, or the switch was emptied."""
    await node.call("ADD", "c1")
    node.switch.ports.clear()
    node.agent.pods.clear()
    await node.call("GC", config={VALID: []})
    assert not node.held()


async def test_garbage_collection_compares_the_interface_too(node):
    await node.call("ADD")
    await node.call("GC", config={VALID: [{"containerID": "c1", "ifname": "net1"}]})
    assert node.is_empty()


async def test_garbage_collection_reports_failures_and_continues(node):
    for container in ("c1", "c2"):
        await node.call("ADD", container)
    node.faults.errors["detach"] = OSError("busy")
    failed = await node.call("GC", config={VALID: []})
    assert failed.json["code"] == 109
    assert failed.json["details"].count("busy") == 2
    assert not node.switch.ports
    assert not node.held()


async def test_garbage_collection_keeps_attachments_that_are_being_added(node):
    node.faults.hang.add("programmed")
    adding = asyncio.create_task(node.call("ADD"))
    await node.faults.reached["programmed"].wait()
    assert (await node.call("GC", config={VALID: []})).exit_code == 0
    assert node.switch.ports
    assert node.held()
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
