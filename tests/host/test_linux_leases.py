"""Changes by the host's network manager on either interface are followed, as `ip` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from host_machines import LinuxMachine, ip, ip_json, requires_namespaces

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

pytestmark = requires_namespaces

SLACK = 5  # seconds that may pass between two looks


def address(interface: str, local: str) -> dict[str, Any] | None:
    (link,) = ip_json("address", "show", "dev", interface)
    return next((info for info in link["addr_info"] if info["local"] == local), None)


def route(interface: str, destination: str, family: str = "-4") -> list[dict[str, Any]]:
    return ip_json(family, "route", "show", destination, "dev", interface)


async def adopt(host: LinuxHost, machine: LinuxMachine) -> None:
    assert (await host.uplink.adopt("eth0", "br-int", machine.node_ips)).problems == ()


@pytest.mark.parametrize(
    ("added", "kept"),
    [
        ("198.18.0.5/24 valid_lft 600 preferred_lft 300", {"dynamic": True}),
        ("198.18.0.5/24 scope link", {"scope": "link"}),
        ("198.18.0.5/24 noprefixroute", {"noprefixroute": True}),
        ("198.18.0.5/24 metric 77", {"metric": 77}),
        ("198.18.0.5 peer 198.18.0.9/32", {"address": "198.18.0.9", "prefixlen": 32}),
        ("2001:db8:5::5/64 valid_lft 600 preferred_lft 300 nodad", {"dynamic": True}),
        ("2001:db8:5::5/64 valid_lft 600 preferred_lft 0 nodad", {"dynamic": True, "deprecated": True}),
        ("2001:db8:5::5/64 noprefixroute mngtmpaddr nodad", {"noprefixroute": True, "mngtmpaddr": True}),
    ],
)
async def test_an_address_moves_with_its_attributes_and_back(host: LinuxHost, machine: LinuxMachine, added: str, kept):
    ip("address", "add", *added.split(), "dev", "eth0")
    local = added.split("/", maxsplit=1)[0].split(maxsplit=1)[0]
    before = address("eth0", local)
    assert before.items() >= kept.items()

    await adopt(host, machine)
    assert address("eth0", local) is None
    assert same(before, address("br-int", local))

    await host.uplink.release("eth0", "br-int")
    assert address("br-int", local) is None
    assert same(before, address("eth0", local))


async def test_the_node_ip_does_not_expire_on_the_bridge_interface(host: LinuxHost, machine: LinuxMachine):
    """While no agent runs, nothing renews it there."""
    ip("address", "change", "192.0.2.5/24", "brd", "+", "dev", "eth0", "valid_lft", "600", "preferred_lft", "600")
    assert "dynamic" in address("eth0", "192.0.2.5")

    for _ in range(2):
        await adopt(host, machine)
        assert "dynamic" not in address("br-int", "192.0.2.5")
        # The DHCP client renews it where it knows it.
        ip("address", "replace", "192.0.2.5/24", "brd", "+", "dev", "eth0", "valid_lft", "900", "preferred_lft", "900")


@pytest.mark.parametrize("leased", ["198.18.0.5/24", "2001:db8:5::5/64"])
async def test_a_lease_renewed_on_the_nic_extends_the_address_on_the_bridge_interface(
    host: LinuxHost, machine: LinuxMachine, leased: str
):
    local = leased.partition("/")[0]
    for seconds in (600, 3600, 60):
        ip("address", "replace", leased, "dev", "eth0", "valid_lft", str(seconds), "preferred_lft", str(seconds))
        await adopt(host, machine)
        assert address("eth0", local) is None
        assert abs(address("br-int", local)["valid_life_time"] - seconds) <= SLACK


async def test_a_lease_renewed_on_the_bridge_interface_is_restored(host: LinuxHost, machine: LinuxMachine):
    """A network manager may also manage the bridge interface."""
    ip("address", "add", "198.18.0.5/24", "dev", "eth0", "valid_lft", "60", "preferred_lft", "60")
    await adopt(host, machine)
    ip("address", "change", "198.18.0.5/24", "dev", "br-int", "valid_lft", "600", "preferred_lft", "500")
    await adopt(host, machine)

    machine.remake_bridge()
    await adopt(host, machine)

    restored = address("br-int", "198.18.0.5")
    assert abs(restored["valid_life_time"] - 600) <= SLACK
    assert abs(restored["preferred_life_time"] - 500) <= SLACK


async def test_a_new_lease_replaces_the_old_one_but_no_other_address(host: LinuxHost, machine: LinuxMachine):
    ip("address", "add", "198.18.0.5/24", "dev", "eth0", "valid_lft", "600", "preferred_lft", "600")
    ip("route", "add", "10.44.0.0/16", "via", "198.18.0.1", "dev", "eth0", "src", "198.18.0.5")
    await adopt(host, machine)
    ip("address", "add", "198.18.0.6/24", "dev", "eth0", "valid_lft", "600", "preferred_lft", "600")

    for _ in range(2):
        await adopt(host, machine)
        assert machine.holders("198.18.0.5") == set()
        assert machine.holders("198.18.0.6") == {"br-int"}
        assert machine.holders("192.0.2.5") == machine.holders("192.0.2.77") == {"br-int"}
        assert route("br-int", "10.44.0.0/16") == []
        machine.remake_bridge()


async def test_a_new_lease_never_replaces_the_node_ip(host: LinuxHost, machine: LinuxMachine):
    ip("address", "change", "192.0.2.5/24", "brd", "+", "dev", "eth0", "valid_lft", "600", "preferred_lft", "600")
    await adopt(host, machine)
    ip("address", "add", "192.0.2.6/24", "dev", "eth0", "valid_lft", "600", "preferred_lft", "600")

    await adopt(host, machine)

    assert machine.holders("192.0.2.5") == machine.holders("192.0.2.6") == {"br-int"}


@pytest.mark.parametrize("prefix", ["192.0.2.5/25", "2001:db8::5/80"])
async def test_another_prefix_length_on_the_nic_replaces_the_old_one(host: LinuxHost, machine: LinuxMachine, prefix):
    await adopt(host, machine)
    ip("address", "add", prefix, "dev", "eth0")
    await adopt(host, machine)
    local, length = prefix.split("/")
    (link,) = ip_json("address", "show", "dev", "br-int")
    assert [str(info["prefixlen"]) for info in link["addr_info"] if info["local"] == local] == [length]


@pytest.mark.parametrize(("destination", "family"), [("203.0.113.0/24", "-4"), ("default", "-4"), ("default", "-6")])
async def test_a_route_that_was_withdrawn_stays_withdrawn(
    host: LinuxHost, machine: LinuxMachine, destination: str, family: str
):
    await adopt(host, machine)
    ip(family, "route", "delete", destination, "dev", "br-int")
    for _ in range(2):
        await adopt(host, machine)
        assert route("br-int", destination, family) == []
        machine.remake_bridge()


async def test_a_route_recreated_on_the_nic_replaces_the_moved_one(host: LinuxHost, machine: LinuxMachine):
    await adopt(host, machine)
    ip("route", "replace", "default", "via", "192.0.2.254", "dev", "eth0", "onlink", "proto", "dhcp", "metric", "100")
    ip("-6", "route", "replace", "default", "via", "fe80::254", "dev", "eth0", "metric", "512")
    await adopt(host, machine)
    for family, gateway in (("-4", "192.0.2.254"), ("-6", "fe80::254")):
        assert [found["gateway"] for found in route("br-int", "default", family)] == [gateway]
        assert route("eth0", "default", family) == []


async def test_the_routes_of_a_restored_node_ip_are_restored(host: LinuxHost, machine: LinuxMachine):
    """With an address, the kernel removes the routes from it; nobody has withdrawn those."""
    ip("route", "change", "default", "via", "192.0.2.1", "dev", "eth0", "src", "192.0.2.5", "metric", "100")
    await adopt(host, machine)
    ip("address", "delete", "192.0.2.5/24", "dev", "br-int")
    assert route("br-int", "default") == []

    await adopt(host, machine)

    assert machine.holders("192.0.2.5") == {"br-int"}
    assert len(route("br-int", "default")) == 1


ROUTES = [
    "route add 10.8.0.0/16 nexthop via 192.0.2.1 dev eth0 weight 3 nexthop via 10.77.0.1 dev gw-far onlink",
    "route add 10.8.0.0/16 nexthop via 192.0.2.1 dev eth0 nexthop via 192.0.2.2 dev eth0",
    "-6 route add 2001:db8:8::/48 nexthop via 2001:db8::1 dev eth0 nexthop via fe80::7 dev gw-far",
    "route add 10.8.0.0/16 via inet6 fe80::9 dev eth0",
    "route add 10.8.0.0/16 tos 0x10 via 192.0.2.1 dev eth0",
    "route add 10.8.0.0/16 via 192.0.2.1 dev eth0 table 77 proto bird",
    "route add 10.8.0.0/16 dev eth0 scope host",
    "-6 route add 2001:db8:8::/48 via 2001:db8::1 dev eth0 expires 600 pref high proto static",
]


@pytest.mark.parametrize("added", ROUTES)
async def test_a_route_moves_with_its_attributes_and_back(host: LinuxHost, machine: LinuxMachine, added: str):
    ip("link", "set", "windlass-gw0", "up")
    ip(*added.split())
    family = "-6" if added.startswith("-6") else "-4"
    destination = "2001:db8:8::/48" if family == "-6" else "10.8.0.0/16"

    def shown() -> str:
        text = ip("-details", family, "route", "show", "table", "all", destination)
        return " ".join(word for word in text.split() if not word.endswith("sec"))

    before = shown()
    await adopt(host, machine)
    assert shown() == before.replace("dev eth0", "dev br-int")
    await host.uplink.release("eth0", "br-int")
    assert shown() == before


async def test_a_network_route_that_the_manager_adds_itself_moves(host: LinuxHost, machine: LinuxMachine):
    """NetworkManager adds the route itself, and marks it as the kernel's."""
    ip("address", "add", "198.18.0.5/24", "dev", "eth0", "noprefixroute")
    ip("route", "add", "198.18.0.0/24", "dev", "eth0", "proto", "kernel", "src", "198.18.0.5", "metric", "100")
    await adopt(host, machine)
    assert [found["metric"] for found in route("br-int", "198.18.0.0/24")] == [100]
    assert route("eth0", "198.18.0.0/24") == []


def same(before: dict[str, Any], after: dict[str, Any] | None) -> bool:
    assert after is not None
    for name in ("valid_life_time", "preferred_life_time"):
        assert abs(before[name] - after[name]) <= SLACK
    ignored = {"valid_life_time", "preferred_life_time", "label", "nodad"}
    assert {k: v for k, v in before.items() if k not in ignored} == {k: v for k, v in after.items() if k not in ignored}
    return True
