"""The agent's configuration: sound defaults, and errors that say what to write instead."""

from __future__ import annotations

import inspect
import platform
import re
from pathlib import Path

import pytest

from windlass.model.nodes import TrafficMode, TunnelType
from windlass.nodes.config import Config, ConfigError, DatapathType, LogFormat, LogLevel, load, parse
from windlass.places import HERE

OPTIONS = (
    "apiServer, auditSeconds, bridge, conntrackMaxPerCore, conntrackMin, conntrackTcpCloseWaitSeconds, "
    "conntrackTcpEstablishedSeconds, conntrackUdpSeconds, conntrackUdpStreamSeconds, countPolicyRules, "
    "datapathType, gateway, "
    "healthzBindAddress, ipamPlugin, kubeconfig, logFormat, logLevel, manifests, metricsBindAddress, mtu, nodeName, "
    "nodePortAddresses, nodePortRange, ovsRunDirectory, reserveLocalPorts, runDirectory, "
    "serviceCIDRs, stateDirectory, trafficMode, tunnel, tunnelType, uplink"
)


@pytest.mark.parametrize("content", [b"", b"---\n", b"# nothing set\n", b"{}"])
def test_every_option_has_a_default(content):
    config = parse(content, "windlass.yaml")
    assert config == Config()
    assert config.node_name == platform.node()
    assert config.traffic_mode is TrafficMode.ENCAP
    assert config.tunnel_type is TunnelType.GENEVE
    assert config.datapath_type is DatapathType.SYSTEM
    assert (config.bridge, config.gateway, config.tunnel, config.uplink) == (
        "br-int",
        "windlass-gw0",
        "windlass-tun0",
        "",
    )
    assert config.mtu == 0
    assert (config.log_format, config.log_level) == (LogFormat.JSON, LogLevel.INFO)


def test_the_node_name_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("WINDLASS_NODE_NAME", "node-7")
    assert parse(b"", "windlass.yaml").node_name == "node-7"
    assert parse(b"nodeName: node-8", "windlass.yaml").node_name == "node-8"
    monkeypatch.setenv("WINDLASS_NODE_NAME", "")
    assert parse(b"", "windlass.yaml").node_name == platform.node()


def test_where_the_sockets_are():
    config = Config()
    assert config.api_socket == Path(HERE.run, "agent.sock")
    assert config.cni_socket == Path(HERE.run, "cni.sock")
    assert config.ovsdb_socket == Path(HERE.ovs_run, "db.sock")
    assert config.openflow_socket == Path(HERE.ovs_run, "br-int.mgmt")
    elsewhere = Config(run_directory="/tmp/w", ovs_run_directory="/tmp/ovs", bridge="br0")
    assert elsewhere.cni_socket == Path("/tmp/w/cni.sock")
    assert elsewhere.openflow_socket == Path("/tmp/ovs/br0.mgmt")


def test_a_file_with_everything(tmp_path):
    file = tmp_path / "windlass.yaml"
    file.write_text(
        "nodeName: node-7\ntrafficMode: hybrid\ntunnelType: vxlan\ndatapathType: netdev\n"
        "nodePortAddresses: [10.0.0.0/8, 'fd00::/8']\nbridge: br0\nuplink: eth1\ngateway: gw\ntunnel: tun\nmtu: 1400\n"
        "manifests: /etc/windlass/manifests\nrunDirectory: /tmp/run\nstateDirectory: /tmp/state\n"
        "ovsRunDirectory: /tmp/ovs\nipamPlugin: /usr/lib/cni/host-local\nauditSeconds: 5\n"
        "logFormat: text\nlogLevel: debug\nconntrackMaxPerCore: 0\nconntrackMin: 1\nconntrackTcpEstablishedSeconds: 2\n"
        "conntrackTcpCloseWaitSeconds: 3\nconntrackUdpSeconds: 4\nconntrackUdpStreamSeconds: 5\n"
    )
    assert load(file) == Config(
        node_name="node-7",
        traffic_mode=TrafficMode.HYBRID,
        tunnel_type=TunnelType.VXLAN,
        datapath_type=DatapathType.NETDEV,
        node_port_addresses=("10.0.0.0/8", "fd00::/8"),
        bridge="br0",
        uplink="eth1",
        gateway="gw",
        tunnel="tun",
        mtu=1400,
        manifests="/etc/windlass/manifests",
        run_directory="/tmp/run",
        state_directory="/tmp/state",
        ovs_run_directory="/tmp/ovs",
        ipam_plugin="/usr/lib/cni/host-local",
        audit_seconds=5,
        log_format=LogFormat.TEXT,
        log_level=LogLevel.DEBUG,
        conntrack_max_per_core=0,
        conntrack_min=1,
        conntrack_tcp_established_seconds=2,
        conntrack_tcp_close_wait_seconds=3,
        conntrack_udp_seconds=4,
        conntrack_udp_stream_seconds=5,
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: b: c", "windlass.yaml, line 1: not valid YAML: mapping values are not allowed in this context"),
        (b"mtu: 5\n  x: [", "windlass.yaml, line 2: not valid YAML: mapping values are not allowed in this context"),
        (b"[trafficMode]", "windlass.yaml: expected options such as `trafficMode: encap`, got list"),
        (b"encap", "windlass.yaml: expected options such as `trafficMode: encap`, got str"),
        (b"trafficmode: encap", "windlass.yaml: trafficmode: there is no such option; did you mean trafficMode?"),
        (b"5: encap", f"windlass.yaml: 5: there is no such option; the options are {OPTIONS}"),
        (
            b"trafficMode: overlay",
            "windlass.yaml: trafficMode: 'overlay' is not one of its values: encap or noEncap or hybrid",
        ),
        (b"trafficMode: 5", "windlass.yaml: trafficMode: 5 is not one of its values: encap or noEncap or hybrid"),
        (b"trafficMode:", "windlass.yaml: trafficMode: None is not one of its values: encap or noEncap or hybrid"),
        (b"tunnelType: gre", "windlass.yaml: tunnelType: 'gre' is not one of its values: geneve or vxlan"),
        (b"datapathType: dpdk", "windlass.yaml: datapathType: 'dpdk' is not one of its values: system or netdev"),
        (
            b"logLevel: loud",
            "windlass.yaml: logLevel: 'loud' is not one of its values: debug or info or warning or error",
        ),
        (b"mtu: much", "windlass.yaml: mtu: expected a number, got text; it is 'much'"),
        (b"mtu: -1", "windlass.yaml: mtu: expected a number >= 0; it is -1"),
        (b"mtu: 70000", "windlass.yaml: mtu: expected a number <= 65535; it is 70000"),
        (b"auditSeconds: 0", "windlass.yaml: auditSeconds: expected a number >= 1; it is 0"),
        (b"nodeName: 7", "windlass.yaml: nodeName: expected text in quotes, got a number; it is 7"),
        (b"manifests: [a]", "windlass.yaml: manifests: expected text, got a list; it is ['a']"),
        (
            b"nodePortAddresses: 10.0.0.0/8",
            "windlass.yaml: nodePortAddresses: expected a list, got text; it is '10.0.0.0/8'",
        ),
        (
            b"nodePortAddresses: [10.0.0.0/8, 10.0.0.5/8]",
            "windlass.yaml: nodePortAddresses[1]: 10.0.0.5/8 has host bits set",
        ),
        (
            b"nodePortAddresses: [all]",
            "windlass.yaml: nodePortAddresses[0]: 'all' does not appear to be an IPv4 or IPv6 network",
        ),
        (
            b"serviceCIDRs: [10.96.0.0/12, 10.96.0.1/12]",
            "windlass.yaml: serviceCIDRs[1]: 10.96.0.1/12 has host bits set",
        ),
        (
            b"nodePortRange: many",
            (
                "windlass.yaml: nodePortRange: 'many' is not a range of ports; "
                "write the first and the last port, such as 30000-32767"
            ),
        ),
        (
            b"nodePortRange: 20000-32767",
            (
                "windlass.yaml: nodePortRange: 20000-32767 overlaps 16384-24575, the source ports of Pods outside "
                "this Node; "
                "write a range outside of 16384-28671, in the API server's --service-node-port-range, too"
            ),
        ),
        (
            b"nodePortRange: 28671-30000",
            (
                "windlass.yaml: nodePortRange: 28671-30000 overlaps 24576-28671, the source ports of clients of "
                "Services outside this Node; write a range outside of 16384-28671, in the API server's "
                "--service-node-port-range, too"
            ),
        ),
        (
            b"healthzBindAddress: everywhere",
            (
                "windlass.yaml: healthzBindAddress: 'everywhere' is not an address with a port; "
                "write one, such as 0.0.0.0:10256, [::1]:10256 or, for all addresses, :10256"
            ),
        ),
        (
            b"gateway: br-int",
            "windlass.yaml: bridge, gateway, tunnel and uplink need different names, got br-int, br-int, windlass-tun0",
        ),
        (
            b"uplink: windlass-tun0",
            (
                "windlass.yaml: bridge, gateway, tunnel and uplink need different names, "
                "got br-int, windlass-gw0, windlass-tun0, windlass-tun0"
            ),
        ),
    ],
)
def test_an_invalid_option_is_an_error_with_a_suggestion(content, sentence):
    with pytest.raises(ConfigError) as refusal:
        parse(content, "windlass.yaml")
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("text", ["1-0", "0-5", "5-65536", "30000", "-", "5-", "1-2-3", "a-b"])
def test_a_range_that_ports_cannot_have(text):
    with pytest.raises(ConfigError, match=f"nodePortRange: '{text}' is not a range of ports"):
        parse(f"nodePortRange: '{text}'".encode(), "windlass.yaml")


def test_node_ports_from_the_first_to_the_last():
    assert Config().node_ports == range(30000, 32768)
    assert parse(b"nodePortRange: 8000-9000", "windlass.yaml").node_ports == range(8000, 9001)
    assert parse(b"nodePortRange: 28672-28672", "windlass.yaml").node_ports == range(28672, 28673)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (":10256", ("", 10256)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),  # noqa: S104
        ("[::1]:65535", ("::1", 65535)),
        ("", None),
    ],
)
def test_where_health_and_figures_are_answered(text, parsed):
    assert parse(f"healthzBindAddress: '{text}'".encode(), "windlass.yaml").healthz == parsed
    assert parse(f"metricsBindAddress: '{text}'".encode(), "windlass.yaml").metrics == parsed


@pytest.mark.parametrize("text", ["10256", "localhost:10256", "::1:10256", "[1.2.3.4]:80", "1.2.3.4:0", "1.2.3.4:x"])
@pytest.mark.parametrize("option", ["healthzBindAddress", "metricsBindAddress"])
def test_an_invalid_bind_address_is_an_error(option, text):
    with pytest.raises(ConfigError, match=f"{option}: .* is not an address with a port"):
        parse(f"{option}: '{text}'".encode(), "windlass.yaml")


@pytest.mark.parametrize("name", ["", "a name", "a/b", "a-name-of-16-let"])
def test_a_name_that_no_interface_can_have(name):
    with pytest.raises(ConfigError, match=f"^windlass.yaml: bridge: .*; it is '{name}'$"):
        parse(f"bridge: '{name}'".encode(), "windlass.yaml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file or directory$"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: (Is a directory|Permission denied)$"):
        load(tmp_path)


def test_every_option_is_explained_where_it_is_declared():
    """The comment above an option is its documentation; one that follows another directly shares it."""
    body = inspect.getsource(Config).split("@property")[0].splitlines()
    options = [number for number, line in enumerate(body) if re.match(r"    \w+: ", line)]
    explained = [n for n in options if body[n - 1].startswith("    # ") or n - 1 in options]
    assert len(options) == len(Config.__struct_fields__)
    assert [body[n] for n in options if n not in explained] == []


@pytest.mark.parametrize(
    ("text", "reserves"),
    [
        (b"", True),
        (b"nodePortRange: 28672-32767", True),
        (b"nodePortRange: 10000-12287", True),
        (b"nodePortRange: 10000-12288", False),
        (b"nodePortRange: 30000-32768", False),
        (b"nodePortRange: 40000-40001", False),
        (b"nodePortRange: 49152-50000", True),
        (b"reserveLocalPorts: false", False),
    ],
)
def test_ports_are_reserved_for_snat_unless_they_are_node_ports(text, reserves):
    assert parse(text, "windlass.yaml").reserves_ports is reserves
