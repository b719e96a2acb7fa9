"""Routes for tunnels: which ones, setting them in a real switch, and errors."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from platforms import not_on_windows
from stream_servers import serving_streams
from switches import requires_ovs
from windlass.agent.tunnelling import tunnel_routes
from windlass.host.plans import Route
from windlass.host.protocol import Uplink
from windlass.switch import ovsdb
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_routes import TunnelRoute, listening_addresses, set_routes, shown_routes

SEGMENT = TunnelRoute(ip_network("10.1.0.0/24"))
OWN = ip_address("10.1.0.5")
BEYOND = TunnelRoute(ip_network("0.0.0.0/0"), ip_address("10.1.0.1"))


def test_tunnel_routes_are_the_networks_of_the_nic_and_routes_by_their_routers():
    uplink = Uplink(
        *("eth0", 2, "02:00:00:00:00:01", 1500),
        addresses=(ip_interface("10.1.0.5/24"), ip_interface("fd00:1::5/64")),
        routes=(
            Route(ip_network("0.0.0.0/0"), "eth0", ip_address("10.1.0.1")),
            Route(ip_network("10.8.0.0/16"), "eth0"),
            Route(ip_network("::/0"), "eth0", ip_address("fe80::1")),  # the source would be a link-local address
        ),
    )
    assert set(tunnel_routes(uplink)) == {SEGMENT, BEYOND, TunnelRoute(ip_network("fd00:1::/64"))}


def test_copied_routes_are_not_listed():
    shown = (
        "Route Table:\n"
        "Cached: 10.1.0.5/32 dev br-int SRC 10.1.0.5 local\n"
        "User: 10.1.0.0/24 dev br-int SRC 10.1.0.5\n"
        "User: 0.0.0.0/0 dev br-int GW 10.1.0.1 SRC 10.1.0.5\n"
        "User: 10.7.0.0/24 dev br-other SRC 10.7.0.5\n"
        "Cached: 0.0.0.0/0 dev br-int GW 10.1.0.1 SRC 10.1.0.5\n"
    )
    assert set(shown_routes(shown, "br-int")) == {SEGMENT, BEYOND}


@pytest.fixture
async def bridged(switch):
    await add_bridge(switch)
    return switch


async def add_bridge(switch):
    """With a tunnel, and a bridge interface that has an address."""
    await switch.vsctl(
        *("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev"),
        *(
            "--",
            "add-port",
            "br-int",
            "tun0",
            "--",
            "set",
            "interface",
            "tun0",
            "type=geneve",
            "options:remote_ip=flow",
        ),
    )
    await switch.add_address("br-int", "10.1.0.5/24")


@requires_ovs
async def test_routes_are_replaced(bridged):
    control = control_socket(str(bridged.rundir))

    async def configured():
        return set(shown_routes(await ask(control, "ovs/route/show"), "br-int"))

    await set_routes(control, "br-int", [SEGMENT, BEYOND], [OWN])
    assert await configured() == {SEGMENT, BEYOND}
    other_router = TunnelRoute(BEYOND.destination, ip_address("10.1.0.2"))
    await set_routes(control, "br-int", [other_router], [OWN])
    assert await configured() == {other_router}


@requires_ovs
async def test_a_route_without_an_address_in_its_network_is_an_error_that_names_it(bridged):
    with pytest.raises(SwitchRefusedError, match=r"refuses ovs/route/add 10\.2\.0\.0/24 br-int: Error while inserting"):
        await set_routes(control_socket(str(bridged.rundir)), "br-int", [TunnelRoute(ip_network("10.2.0.0/24"))], [OWN])


@requires_ovs
@not_on_windows("a dummy datapath does not follow the addresses of its interfaces")
async def test_a_bridge_that_was_created_again_receives_tunnel_packets_again(bridged):
    control = control_socket(str(bridged.rundir))

    async def listening():
        return set(listening_addresses(await ask(control, "tnl/ports/show", "-v")))

    await set_routes(control, "br-int", [SEGMENT, BEYOND], [OWN])
    assert OWN in await listening()
    await bridged.vsctl("del-br", "br-int")
    assert OWN not in await listening()
    await add_bridge(bridged)
    await set_routes(control, "br-int", [SEGMENT, BEYOND], [OWN])
    assert OWN in await listening()


@requires_ovs
async def test_the_control_socket_has_the_process_id_in_its_name_unless_another_was_given(switch, tmp_path):
    assert control_socket(str(switch.rundir)) == str(switch.rundir / "ovs-vswitchd.ctl")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(SwitchUnreachableError, match="start ovs-vswitchd with --pidfile"):
        control_socket(str(elsewhere))
    (elsewhere / "ovs-vswitchd.pid").write_text("4711\n")
    assert control_socket(str(elsewhere)) == str(elsewhere / "ovs-vswitchd.4711.ctl")
    with pytest.raises(SwitchUnreachableError, match=r"4711\.ctl: no such socket"):
        await ask(control_socket(str(elsewhere)), "version")


async def test_a_daemon_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(ovsdb, "PATIENCE", 0.05)

    async def stay_silent(reader, writer):
        await reader.read()
        writer.close()

    socket = tmp_path / "ovs-vswitchd.ctl"
    socket.touch()  # as Open vSwitch for Windows does it beside a pipe
    async with serving_streams(socket, stay_silent):
        with pytest.raises(SwitchUnreachableError, match=r"does not answer version within 0\.05 s; is it stuck"):
            await ask(control_socket(str(tmp_path)), "version")
