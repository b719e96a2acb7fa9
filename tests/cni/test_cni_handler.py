"""Addresses, link, port and flows of a Pod after every kind of failure and in every order of requests."""

from __future__ import annotations

import asyncio
import json
import sys
from ipaddress import ip_network

import pytest

from windlass.cni.handler import Limits
from windlass.model.families import Family

VALID = "cni.dev/valid-attachments"
STEPS = ["attach", "add_pod_port", "programmed"]


async def test_a_pod_is_set_up_in_order_and_removed_in_reverse(node):
    assert (await node.call("ADD")).exit_code == 0
    (name,) = node.host.links
    assert (await node.call("DEL")).output == ""
    assert node.journal == [
        *(f"attach {name}", f"add port {name}", f"program {name}"),
        *(f"forget {name}", f"delete port {name}", f"detach {name}"),
    ]
    assert node.is_empty()


async def test_the_link_the_port_and_the_flows_agree(node):
    result = (await node.call("ADD", pod="web-0")).json
    (link,), (port,), (pod,) = node.host.links.values(), node.switch.ports.values(), node.agent.pods.values()
    assert link.host_interface == port.interface == pod.interface == result["interfaces"][0]["name"]
    assert link.mac == port.mac == pod.mac == result["interfaces"][1]["mac"] == "0a:58:0a:01:00:02"
    assert [ip["address"] for ip in result["ips"]] == [str(address) for address in link.addresses]
    assert port.addresses == pod.addresses == tuple(address.ip for address in link.addresses)
    assert (link.mtu, link.link_mtu, link.userspace) == (1450, 1500, True)
    assert (link.namespace, link.interface) == (str(node.netns), "eth0")
    assert (pod.key, pod.container_id, pod.ofport, port.netns) == ("default/web-0", "c1", 16, str(node.netns))


async def test_add_again_gives_the_same_result_and_changes_nothing(node):
    first = await node.call("ADD")
    done = list(node.journal)
    assert await node.call("ADD") == first
    node.restart()
    assert await node.call("ADD") == first
    assert node.journal == done


async def test_docker_attaches_the_sandbox_and_then_each_container_of_the_pod(node):
    """On Windows: the endpoint is created for the sandbox only, and every container is attached to it."""
    refused = await node.call("ADD", "workload-1", CNI_NETNS="container:c1")
    assert refused.json["msg"] == "the sandbox c1 of container workload-1 is not attached"
    assert node.is_empty()

    dns = {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"]}
    first = await node.call("ADD", "c1", CNI_NETNS="none", config={"runtimeConfig": {"dns": dns}})
    (link,) = node.host.links.values()
    assert (link.namespace, link.container, link.dns.servers) == ("none", "c1", ("10.96.0.10",))
    done = list(node.journal)
    assert await node.call("ADD", "c1", CNI_NETNS="none", config={"runtimeConfig": {"dns": dns}}) == first

    workload = await node.call("ADD", "workload-1", CNI_NETNS="container:c1")
    assert workload.json["ips"] == first.json["ips"]
    assert [link.container for link in node.host.links.values()] == ["workload-1"]
    assert node.journal == done

    assert (await node.call("DEL", "workload-1", CNI_NETNS="container:c1")).exit_code == 0
    assert len(node.host.links) == 1
    for _ in range(2):  # the second time without a namespace
        assert (await node.call("DEL", "c1", CNI_NETNS="")).exit_code == 0
    assert node.is_empty()


async def test_a_port_whose_interface_appears_later_gets_its_flows_by_itself(node):
    async def without_number(_port, _uid=""):
        return None

    node.switch.add_pod_port = without_number
    assert (await node.call("ADD")).exit_code == 0
    assert node.agent.pods == {}
    assert len(node.host.links) == 1


async def test_add_of_a_damaged_pod_attaches_it_again(node):
    await node.call("ADD")
    (name,) = node.host.links
    node.host.links.clear()
    assert (await node.call("ADD")).exit_code == 0
    assert list(node.host.links) == [name]
    assert node.journal[3:5] == [f"forget {name}", f"delete port {name}"]


async def test_add_of_a_pod_with_an_address_of_another_pod_cidr_allocates_a_new_one(make_node):
    node = make_node()
    await node.call("ADD")
    moved = {Family.IPV4: ip_network("10.9.0.0/24")}
    node.agent.network = type(node.agent.network)(moved, mtu=1450, link_mtu=1500, userspace=True)
    assert (await node.call("ADD")).json["ips"][0]["address"] == "10.9.0.2/24"
    assert node.held() == ["10.9.0.2"]


async def test_add_completes_the_work_of_a_killed_agent(node):
    """The address and the link are there, the port is not."""
    first = await node.call("ADD")
    node.switch.ports.clear()
    node.agent.pods.clear()
    node.restart()
    assert (await node.call("ADD")).json["ips"] == first.json["ips"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_failed_add_leaves_nothing_behind(node, step):
    node.faults.errors[step] = OSError(f"{step} is not possible")
    failed = await node.call("ADD")
    assert failed.exit_code == 1
    assert failed.json["code"] == {"attach": 103, "add_pod_port": 104, "programmed": 105}[step]
    assert failed.json["details"] == f"{step} is not possible"
    assert node.is_empty()
    node.faults.errors.clear()
    assert (await node.call("ADD")).exit_code == 0


async def test_an_add_without_a_free_address_leaves_nothing_behind(make_node):
    node = make_node(cidrs={Family.IPV4: ip_network("10.1.0.0/30")})
    assert (await node.call("ADD", "c1")).exit_code == 0
    failed = await node.call("ADD", "c2")
    assert failed.json["code"] == 100
    assert len(node.host.links) == len(node.switch.ports) == len(node.held()) == 1


@pytest.mark.parametrize("step", STEPS)
async def test_an_add_that_hangs_is_ended_and_leaves_nothing_behind(make_node, step):
    node = make_node(limits=Limits(work=3))  # long enough for the steps before the one that hangs
    node.faults.hang.add(step)
    failed = await node.call("ADD")
    assert failed.json["code"] == 11
    assert "within 3 s" in failed.json["msg"]
    assert {"attach": "link", "add_pod_port": "port", "programmed": "flows"}[step] in failed.json["details"]
    assert node.is_empty()


@pytest.mark.parametrize("step", STEPS)
async def test_an_add_that_is_cancelled_leaves_nothing_behind(node, step):
    node.faults.hang.add(step)
    task = asyncio.create_task(node.call("ADD"))
    await node.faults.reached[step].wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.is_empty()


async def test_failed_rollback_steps_are_reported_and_the_others_run(node):
    node.faults.errors |= {
        "programmed": OSError("the switch is away"),
        "forget": OSError("still away"),
        "detach": OSError("busy"),
    }
    failed = await node.call("ADD")
    assert failed.json["code"] == 105
    details = failed.json["details"]
    assert details.startswith("the switch is away. Not everything could be removed again: the Pod's flows: still away")
    assert details.endswith(": busy.")
    assert not node.switch.ports
    assert not node.held()


# Enough for host-local to end; under Wine, a program starts in tenths of a second.
REMOVAL = 5.0 if sys.platform == "win32" else 0.1


async def test_a_removal_that_hangs_is_bounded(make_node):
    node = make_node(limits=Limits(removal=REMOVAL))
    await node.call("ADD")
    node.faults.hang.add("detach")
    failed = await node.call("DEL")
    assert failed.json["code"] == 109
    assert f"was not removed within {REMOVAL:g} s" in failed.json["details"]
    assert not node.switch.ports
    node.faults.hang.clear()
    assert (await node.call("DEL")).exit_code == 0
    assert node.is_empty()


async def test_a_switch_that_does_not_answer_is_not_waited_for_for_ever(make_node):
    node = make_node(limits=Limits(work=0.1))
    node.faults.hang.add("list_pod_ports")
    for command in ("ADD", "DEL", "GC"):
        failed = await node.call(command, config={VALID: []})
        assert failed.json["code"] in {11, 104}


async def test_a_bug_is_one_requests_error(node):
    node.agent.pod_network = lambda: 1 / 0
    failed = await node.call("ADD")
    assert failed.json["code"] == 999
    assert "ZeroDivisionError" in failed.json["msg"]
    assert (await node.call("DEL")).exit_code == 0


async def test_del_of_a_missing_pod_succeeds(node):
    assert (await node.call("DEL")).exit_code == 0
    await node.call("ADD")
    assert (await node.call("DEL", CNI_NETNS="")).exit_code == 0
    assert (await node.call("DEL", CNI_NETNS="")).exit_code == 0
    assert node.is_empty()


async def test_del_finds_the_pod_without_its_name_and_without_a_valid_configuration(node):
    await node.call("ADD")
    node.restart()
    node.agent.network = None
    gone = await node.call("DEL", config=b'{"name": "pods", "cniVersion": 0}', CNI_ARGS="", CNI_NETNS="")
    assert gone.exit_code == 0
    assert node.is_empty()


async def test_del_by_name_removes_a_link_that_never_became_a_port(node):
    await node.call("ADD")
    node.switch.ports.clear()
    node.agent.pods.clear()
    await node.call("DEL")
    assert node.is_empty()


async def test_del_of_another_interface_leaves_the_pod_alone(node):
    await node.call("ADD")
    assert (await node.call("DEL", CNI_IFNAME="net1")).exit_code == 0
    assert node.agent.pods
    assert node.switch.ports


async def test_a_second_interface_is_refused(node):
    await node.call("ADD")
    failed = await node.call("ADD", CNI_IFNAME="net1")
    assert failed.json["code"] == 106
    assert "default/web-0 is already on this network" in failed.json["msg"]
    assert len(node.host.links) == 1


async def test_a_namespace_that_is_not_there_is_an_unknown_container(node):
    for command in ("ADD", "CHECK"):
        failed = await node.call(command, CNI_NETNS="/run/netns/gone", config={"prevResult": {}})
        assert failed.json["code"] == 3
        assert "/run/netns/gone" in failed.json["msg"]
    assert node.is_empty()


async def test_before_the_agent_is_ready(node):
    node.agent.network = None
    for command, code in (("STATUS", 50), ("ADD", 11), ("CHECK", 11)):
        failed = await node.call(command, config={"prevResult": {}})
        assert failed.json["code"] == code
        assert failed.json["details"] == "the Node has no podCIDR yet"
    assert (await node.call("DEL")).exit_code == 0


async def test_status_of_a_node_that_cannot_give_addresses(node, tmp_path):
    assert await node.call("STATUS") == await node.call("STATUS")
    assert (await node.call("STATUS")).exit_code == 0
    node.host_local = tmp_path / "host-local"
    node.restart()
    failed = await node.call("STATUS")
    assert failed.json["code"] == 50
    assert "host-local is missing" in failed.json["details"]


async def test_check_of_a_pod_that_is_well(node):
    result = (await node.call("ADD")).json
    done = list(node.journal)
    assert await node.call("CHECK", config={"prevResult": result}) == await node.call(
        "CHECK", config={"prevResult": result}
    )
    assert (await node.call("CHECK", config={"prevResult": result})).exit_code == 0
    assert node.journal == done


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda node: node.host.links.clear(), "is gone"),
        (lambda node: node.switch.ports.clear(), "the bridge has no port for the Pod"),
        (
            lambda node: (node.folder / "addresses/pods/10.1.0.2").unlink(),
            "10.1.0.2 is not reserved for the Pod but free",
        ),
        (lambda node: node.faults.errors.update(programmed=OSError("drifted")), "drifted"),
        (lambda node: node.faults.errors.update(list_pod_ports=OSError("no database")), "no database"),
    ],
)
async def test_check_reports_what_differs(node, damage, words):
    result = (await node.call("ADD")).json
    damage(node)
    failed = await node.call("CHECK", config={"prevResult": result})
    assert failed.exit_code == 1
    assert words in failed.json["details"]


async def test_check_compares_with_the_previous_result(node):
    result = (await node.call("ADD")).json
    result["ips"][0]["address"] = "10.1.0.99/24"
    result["ips"].append({"address": "192.0.2.1/24"})  # another plugin's
    failed = await node.call("CHECK", config={"prevResult": result})
    assert failed.json["code"] == 108
    assert failed.json["details"] == (
        "10.1.0.99 is in prevResult but not on the port; 10.1.0.2 is on the port but not in prevResult"
    )


async def test_requests_of_one_container_come_one_after_the_other(node):
    outcomes = await asyncio.gather(
        *(node.call(command) for command in ("ADD", "ADD", "DEL", "ADD", "DEL", "DEL", "ADD"))
    )
    assert [outcome.exit_code for outcome in outcomes] == [0] * 7
    (name,) = node.host.links
    attach = [f"attach {name}", f"add port {name}", f"program {name}"]
    detach = [f"forget {name}", f"delete port {name}", f"detach {name}"]
    assert node.journal == attach + detach + attach + detach + attach


async def test_different_containers_go_side_by_side_but_not_too_many(make_node):
    """Each waits in `attach` until all of them are there: one after the other they would never get there."""
    node = make_node(limits=Limits(at_once=4))
    inside = most = 0
    all_there = asyncio.Event()

    async def meet(method):
        nonlocal inside, most
        if method == "attach":
            inside += 1
            most = max(most, inside)
            if inside == 4:
                all_there.set()
            await all_there.wait()
            inside -= 1

    node.faults.meet = meet
    outcomes = await asyncio.gather(*(node.call("ADD", f"c{number}") for number in range(12)))
    assert [outcome.exit_code for outcome in outcomes] == [0] * 12
    assert most == 4
    assert len(node.held()) == 24


async def test_a_request_does_not_wait_for_its_turn_for_ever(make_node):
    node = make_node(limits=Limits(work=0.2))
    node.faults.hang.add("detach")
    stuck = asyncio.create_task(node.call("DEL"))
    await node.faults.reached["detach"].wait()
    failed = await node.call("ADD")
    assert failed.json["code"] == 11
    assert "container c1 waited too long" in failed.json["msg"]
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)


async def test_a_name_that_is_taken_by_another_container_is_left_to_it(node):
    """Two digests may happen to be equal; here they are made to be."""
    await node.call("ADD", "c1")
    ((name, port),) = node.switch.ports.items()
    node.switch.ports[name] = type(port)(**{f: getattr(port, f) for f in port.__slots__} | {"container_id": "other"})
    failed = await node.call("ADD", "c1")
    assert failed.json["code"] == 107
    assert "default/web-0, container other" in failed.json["msg"]
    await node.call("DEL", "c1")
    assert name in node.switch.ports
    assert name in node.host.links


async def test_the_answer_is_in_the_version_asked_for_also_when_it_is_an_error(node):
    node.agent.network = None
    assert (await node.call("ADD", config={"cniVersion": "0.4.0"})).json["cniVersion"] == "0.4.0"
    assert (await node.call("ADD", config={"cniVersion": "9.9.9"})).json["cniVersion"] == "1.1.0"
    assert (await node.call("ADD", config=b"junk")).json["cniVersion"] == "1.1.0"


async def test_no_lock_is_kept(node):
    for number in range(3):
        await node.call("ADD", f"c{number}")
    assert not node.handler._queue._locks
    assert json.loads((await node.call("VERSION")).output)["supportedVersions"]
