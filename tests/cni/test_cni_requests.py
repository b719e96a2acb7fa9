"""The requests of a container runtime, and the errors for invalid ones."""

from __future__ import annotations

import json
from contextlib import suppress
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.cni.attachments import Attachment, PodNetwork, interface_name, pod_link, pod_mac
from windlass.cni.configurations import SUPPORTED_VERSIONS, Dns
from windlass.cni.errors import RequestError
from windlass.cni.requests import (
    AddRequest,
    CheckRequest,
    DeleteRequest,
    GarbageRequest,
    StatusRequest,
    VersionRequest,
    parse,
)
from windlass.cni.results import attached
from windlass.model.families import Family
from windlass.switch.pod_ports import PodPort

ENVIRONMENT = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/c1",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
}
NETWORK = PodNetwork(
    {Family.IPV4: ip_network("10.1.0.0/24"), Family.IPV6: ip_network("fd00:10:1::/64")},
    mtu=1450,
    link_mtu=1500,
    userspace=False,
)
PORT = PodPort(
    interface="web-0-abcdef",
    container_id="c1",
    namespace="default",
    name="web-0",
    mac="0a:58:0a:01:00:05",
    addresses=(ip_address("10.1.0.5"), ip_address("fd00:10:1::5")),
)


def ask(config=None, **environment):
    text = config if isinstance(config, bytes) else json.dumps({"cniVersion": "1.1.0", "name": "pods"} | (config or {}))
    return parse(ENVIRONMENT | environment, text if isinstance(text, bytes) else text.encode())


def refusal(config=None, **environment) -> RequestError:
    with pytest.raises(RequestError) as caught:
        ask(config, **environment)
    assert caught.value.msg
    return caught.value


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_add_in_each_version(version):
    add = ask({"cniVersion": version})
    assert isinstance(add, AddRequest)
    assert add.version == version
    assert add.attachment == Attachment("c1", "eth0")
    assert (add.namespace, add.name, add.netns) == ("default", "web-0", "/run/netns/c1")


@pytest.mark.parametrize(
    ("command", "since"), [("ADD", "0.3.1"), ("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")]
)
@pytest.mark.parametrize("version", ["", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "2.0.0"])
def test_a_version_that_does_not_know_the_command_is_incompatible(command, since, version):
    if version in SUPPORTED_VERSIONS and version >= since:
        return
    error = refusal({"cniVersion": version}, CNI_COMMAND=command)
    assert error.code == 1
    assert repr(version) in error.msg
    assert since in error.details


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"CNI_COMMAND": ""}, "CNI_COMMAND"),
        ({"CNI_COMMAND": "PATCH"}, "CNI_COMMAND"),
        ({"CNI_CONTAINERID": ""}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "../etc"}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "c" * 256}, "CNI_CONTAINERID"),
        ({"CNI_IFNAME": ""}, "CNI_IFNAME"),
        ({"CNI_IFNAME": ".."}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "a/b"}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "sixteencharacter"}, "CNI_IFNAME"),
        ({"CNI_NETNS": ""}, "CNI_NETNS"),
        ({"CNI_ARGS": ""}, "CNI_ARGS"),
        ({"CNI_ARGS": "nonsense"}, "CNI_ARGS"),
        ({"CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=Web"}, "K8S_POD_NAME"),
        ({"CNI_ARGS": "K8S_POD_NAMESPACE=a.b;K8S_POD_NAME=web"}, "K8S_POD_NAMESPACE"),
    ],
)
def test_an_invalid_variable_is_named(environment, named):
    error = refusal(**environment)
    assert error.code == 4
    assert named in error.msg


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        (b"", 6, "not JSON"),
        (b"{", 6, "not JSON"),
        (b'{"cniVersion": "1.1.0", "name": "\xff"}', 6, "not JSON"),
        (b'{"x":' * 100_000, 6, "not JSON"),
        (b"[]", 7, "invalid"),
        ({"name": 5}, 7, "name"),
        ({"name": "a/b"}, 7, "a/b"),
        ({"prevResult": {"ips": "all"}}, 7, "prevResult.ips"),
        ({"args": {"cni": {"ips": ["10.1.0.300"]}}}, 7, "10.1.0.300"),
        ({"args": {"cni": {"ips": ["10.1.0.3", "10.1.0.4"]}}}, 7, "one address of each family"),
        ({"runtimeConfig": {"portMappings": [{"hostPort": 80}]}}, 2, 'portMappings is [{"hostPort": 80}]'),
        ({"runtimeConfig": {"mac": "0a:00:00:00:00:01"}}, 2, "0a:00:00:00:00:01"),
        ({"ipam": {"type": "dhcp"}}, 2, 'ipam.type is "dhcp"'),
        ({"ipam": {"type": "host-local", "subnet": "10.0.0.0/8"}}, 2, "ipam.subnet"),
    ],
)
def test_an_invalid_configuration_is_refused_with_the_place(config, code, words):
    error = refusal(config)
    assert error.code == code
    assert words in str(error)


def test_empty_options_are_ignored():
    ask({"runtimeConfig": {"portMappings": [], "bandwidth": None}, "ipam": {"type": "host-local"}, "args": None})


@pytest.mark.parametrize(
    ("config", "arguments", "requested"),
    [
        ({}, "", []),
        ({}, "IP=10.1.0.9/24", ["10.1.0.9"]),
        ({"args": {"cni": {"ips": ["10.1.0.7/24", "fd00:10:1::7"]}}}, "IP=10.1.0.9", ["10.1.0.7", "fd00:10:1::7"]),
        ({"args": {"cni": {"ips": ["10.1.0.7"]}}, "runtimeConfig": {"ips": ["10.1.0.6/24"]}}, "", ["10.1.0.6"]),
    ],
)
def test_requested_addresses_in_order_of_precedence(config, arguments, requested):
    add = ask(config, CNI_ARGS=f"{ENVIRONMENT['CNI_ARGS']};{arguments}")
    assert [str(address) for address in add.requested] == requested


def test_dns_of_the_runtime_wins_over_that_of_the_configuration():
    static = {"nameservers": ["10.0.0.1"], "domain": "here", "options": ["rotate"]}
    given = {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"]}
    assert ask({"dns": static, "runtimeConfig": {"dns": given}}).dns == Dns(
        nameservers=("10.96.0.10",), domain="here", search=("svc.cluster.local",), options=("rotate",)
    )
    assert ask({"dns": static}).dns == Dns(nameservers=("10.0.0.1",), domain="here", options=("rotate",))


def test_del_needs_little():
    assert ask(CNI_COMMAND="DEL", CNI_NETNS="") == DeleteRequest(Attachment("c1", "eth0"), "web-0")
    broken = {"cniVersion": 7, "prevResult": "lost", "ipam": [], "runtimeConfig": 1}
    assert ask(broken, CNI_COMMAND="DEL", CNI_ARGS="nonsense") == DeleteRequest(Attachment("c1", "eth0"), None)
    assert refusal({"name": ""}, CNI_COMMAND="DEL").code == 7
    assert refusal(CNI_COMMAND="DEL", CNI_CONTAINERID="").code == 4


def test_check_takes_the_addresses_of_the_previous_result():
    check = ask({"prevResult": {"ips": [{"address": "10.1.0.5/24", "interface": 1}]}}, CNI_COMMAND="CHECK")
    assert check == CheckRequest(Attachment("c1", "eth0"), "/run/netns/c1", (ip_address("10.1.0.5"),))
    assert refusal(CNI_COMMAND="CHECK").code == 7
    assert refusal({"prevResult": {"ips": [{}]}}, CNI_COMMAND="CHECK").code == 7


def test_garbage_is_collected_only_with_a_list():
    listed = [{"containerID": "c1", "ifname": "eth0"}]
    assert ask({"cni.dev/valid-attachments": listed}, CNI_COMMAND="GC") == GarbageRequest(
        frozenset({Attachment("c1", "eth0")})
    )
    assert ask({"cni.dev/valid-attachments": None}, CNI_COMMAND="GC") == GarbageRequest(frozenset())
    assert "nothing is removed" in refusal(CNI_COMMAND="GC").details


def test_status_and_version():
    assert ask(CNI_COMMAND="STATUS") == StatusRequest()
    assert ask(b"", CNI_COMMAND="VERSION") == VersionRequest("1.1.0")
    assert ask({"cniVersion": "0.4.0"}, CNI_COMMAND="VERSION") == VersionRequest("0.4.0")


@given(st.dictionaries(st.sampled_from(sorted(ENVIRONMENT)), st.text(max_size=20)), st.binary(max_size=100))
def test_any_input_is_parsed_or_refused(environment, config):
    with suppress(RequestError):
        parse(ENVIRONMENT | environment, config)


def test_the_result_has_the_form_of_the_version_asked_for():
    link = pod_link(NETWORK, PORT, Attachment("c1", "eth0"), "/run/netns/c1")
    given = {"runtimeConfig": {"dns": {"servers": ["10.96.0.10"]}}}
    assert json.loads(attached(ask(given), link)) == {
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "web-0-abcdef", "mtu": 1500},
            {"name": "eth0", "mac": "0a:58:0a:01:00:05", "sandbox": "/run/netns/c1", "mtu": 1500},
        ],
        "ips": [
            {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1},
            {"address": "fd00:10:1::5/64", "gateway": "fd00:10:1::1", "interface": 1},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1450},
            {"dst": "::/0", "gw": "fd00:10:1::1", "mtu": 1450},
        ],
        "dns": {"nameservers": ["10.96.0.10"]},
    }
    older = json.loads(attached(ask({"cniVersion": "0.4.0"}), link))
    assert [ip["version"] for ip in older["ips"]] == ["4", "6"]
    assert "mtu" not in older["interfaces"][0]
    newer = json.loads(attached(ask({"cniVersion": "1.0.0"}), link))
    assert "version" not in newer["ips"][0]
    assert "mtu" not in newer["interfaces"][0]


def test_the_result_extends_that_of_earlier_plugins_in_a_chain():
    link = pod_link(NETWORK, PORT, Attachment("c1", "eth0"), "/run/netns/c1")
    previous = {
        "interfaces": [{"name": "other0"}],
        "ips": [{"address": "192.0.2.5/24", "interface": 0}],
        "routes": [{"dst": "192.0.2.0/24"}],
        "dns": {"domain": "here"},
    }
    result = json.loads(attached(ask({"prevResult": previous}), link))
    assert [interface["name"] for interface in result["interfaces"]] == ["other0", "web-0-abcdef", "eth0"]
    assert [ip["interface"] for ip in result["ips"]] == [0, 2, 2]
    assert result["routes"][0] == {"dst": "192.0.2.0/24"}
    assert result["dns"] == {"domain": "here"}


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True),
    st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=2, max_size=5, unique=True),
)
def test_interface_names_fit_are_readable_and_differ(pod, containers):
    names = {interface_name(pod, Attachment(container, ifname)) for container in containers for ifname in ("eth0", "a")}
    assert len(names) == 2 * len(containers)
    for name in names:
        assert len(name) <= 15
        assert name[0] == pod[0]
        assert name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""


def test_an_interface_name_can_be_recognised():
    assert interface_name("web-0", Attachment("c1", "eth0")) == "web-0-24xagl"
    assert interface_name("coredns-7db6d8ff4d", Attachment("c1", "eth0")) == "coredns-24xagl"


def test_the_mac_is_a_function_of_the_address():
    assert pod_mac([ip_address("10.1.0.5")]) == "0a:58:0a:01:00:05"
    assert pod_mac([ip_address("fd00::5"), ip_address("10.1.0.5")]) == "0a:58:0a:01:00:05"
    assert pod_mac([ip_address("fd00::1:203")]) == "0a:58:00:01:02:03"
