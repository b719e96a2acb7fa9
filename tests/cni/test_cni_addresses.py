"""Addresses, by the real host-local in a folder of its own."""

from __future__ import annotations

import asyncio
import os
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from platforms import not_on_windows
from windlass.cni.addresses import HostLocal
from windlass.cni.attachments import Attachment
from windlass.cni.errors import RequestError
from windlass.model.families import Family

SMALL = {Family.IPV4: ip_network("10.1.0.0/29")}  # six addresses, one of which is the gateway
BOTH = {Family.IPV4: ip_network("10.1.0.0/24"), Family.IPV6: ip_network("fd00:10:1::/64")}
ONE, OTHER = Attachment("c1", "eth0"), Attachment("c2", "eth0")


@pytest.fixture
def addresses(host_local, tmp_path):
    return HostLocal(host_local, tmp_path / "addresses")


async def test_one_address_of_each_family_in_the_order_of_the_ranges(addresses):
    given = await addresses.allocate(ONE, BOTH, ())
    assert [str(address) for address in given] == ["10.1.0.2/24", "fd00:10:1::2/64"]
    turned = await addresses.allocate(OTHER, dict(reversed(BOTH.items())), ())
    assert [address.version for address in turned] == [6, 4]


async def test_asking_again_gives_the_same(addresses):
    assert await addresses.allocate(ONE, BOTH, ()) == await addresses.allocate(ONE, BOTH, ())
    assert await addresses.holders() == {ONE}


async def test_a_reserved_address_that_no_longer_fits_is_released(addresses):
    """The Node has got a second family, or the Pod another wish."""
    await addresses.allocate(ONE, SMALL, ())
    assert len(await addresses.allocate(ONE, BOTH, ())) == 2
    given = await addresses.allocate(ONE, BOTH, [ip_address("10.1.0.77")])
    assert str(given[0]) == "10.1.0.77/24"
    assert len(await addresses._held()) == 2


async def test_released_addresses_are_free_and_releasing_twice_is_fine(addresses):
    given = await addresses.allocate(ONE, BOTH, ())
    await addresses.release(ONE)
    await addresses.release(ONE)
    assert await addresses.holders() == frozenset()
    assert await addresses.allocate(OTHER, BOTH, [address.ip for address in given]) == given


async def test_two_interfaces_of_a_container_are_two_holders(addresses):
    second = Attachment("c1", "net1")
    await addresses.allocate(ONE, BOTH, ())
    await addresses.allocate(second, BOTH, ())
    await addresses.release(ONE)
    assert await addresses.holders() == {second}


async def test_a_full_range_is_named(addresses):
    for number in range(5):
        await addresses.allocate(Attachment(f"c{number}", "eth0"), SMALL, ())
    with pytest.raises(
        RequestError, match=r"no address is free in 10\.1\.0\.0/29.*: 5 are in use; .*maxPods"
    ) as caught:
        await addresses.allocate(Attachment("late", "eth0"), SMALL, ())
    assert caught.value.code == 100


async def test_if_one_family_is_full_the_other_is_not_held(addresses):
    full = {Family.IPV6: BOTH[Family.IPV6], **SMALL}
    for number in range(5):
        await addresses.allocate(Attachment(f"c{number}", "eth0"), SMALL, ())
    with pytest.raises(RequestError, match="no address is free"):
        await addresses.allocate(Attachment("late", "eth0"), full, ())
    assert len(await addresses._held()) == 5


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("10.1.0.9", "held by container c2"),
        ("10.1.0.1", "is the gateway of 10.1.0.0/24"),
        ("10.2.0.9", "not in the podCIDR of this Node, 10.1.0.0/24 and fd00:10:1::/64"),
        ("fd00:10:2::9", "not in the podCIDR"),
    ],
)
async def test_a_wish_that_cannot_be_granted_is_explained(addresses, wish, words):
    await addresses.allocate(OTHER, BOTH, [ip_address("10.1.0.9")])
    with pytest.raises(RequestError) as caught:
        await addresses.allocate(ONE, BOTH, [ip_address(wish)])
    assert caught.value.code == 101
    assert words in caught.value.msg
    assert await addresses.holders() == {OTHER}


async def test_check_reports_an_address_that_is_not_reserved_and_its_holder(addresses):
    (given, _) = await addresses.allocate(ONE, BOTH, ())
    (taken, _) = await addresses.allocate(OTHER, BOTH, ())
    assert await addresses.check(ONE, [given.ip]) == []
    assert await addresses.check(ONE, [taken.ip, ip_address("10.1.0.99")]) == [
        f"{taken.ip} is not reserved for the Pod but held by container c2 (eth0)",
        "10.1.0.99 is not reserved for the Pod but free",
    ]


async def test_many_at_once_get_different_addresses(addresses):
    given = await asyncio.gather(*(addresses.allocate(Attachment(f"c{n}", "eth0"), BOTH, ()) for n in range(20)))
    assert len({address for pair in given for address in pair}) == 40


async def test_a_missing_plugin_is_named(tmp_path):
    absent = Path("/nowhere/host-local")
    missing = HostLocal(absent, tmp_path)
    assert f"{absent} is missing" in missing.unavailable()
    with pytest.raises(RequestError, match="install the package containernetworking-plugins"):
        await missing.allocate(ONE, BOTH, ())
    with pytest.raises(RequestError, match="could not release"):
        await missing.release(ONE)


async def test_words_of_the_plugin_that_we_do_not_know_are_passed_on(addresses):
    with pytest.raises(RequestError, match="too small to allocate from") as caught:
        await addresses.allocate(ONE, {Family.IPV4: ip_network("10.1.0.0/32")}, ())
    assert caught.value.code == 102


@not_on_windows("its plugin is a script of the shell")
async def test_invalid_output_of_the_plugin_is_quoted(tmp_path):
    odd = tmp_path / "host-local"
    odd.write_text("#!/bin/sh\necho oops; echo dear >&2; exit 3\n")
    odd.chmod(0o755)
    with pytest.raises(RequestError, match="oops\ndear"):
        await HostLocal(odd, tmp_path).allocate(ONE, BOTH, ())


@not_on_windows("its plugin is a script of the shell")
async def test_a_plugin_that_hangs_is_killed_with_the_request(tmp_path):
    stuck, started = tmp_path / "host-local", tmp_path / "started"
    os.mkfifo(started)
    stuck.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 100\n")
    stuck.chmod(0o755)
    task = asyncio.create_task(HostLocal(stuck, tmp_path).allocate(ONE, BOTH, ()))
    pid = int(await asyncio.to_thread(started.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
