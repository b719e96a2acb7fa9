"""The chart as Helm renders it: the agent accepts its configuration, and invalid values are rejected by name."""

from __future__ import annotations

import json
import re
from enum import Enum
from itertools import pairwise

import msgspec
import pytest
import yaml
from charts import API_SERVER, CHART, containers, needs_helm, refusal, rendered

import windlass
from windlass.cluster.kubernetes.roles import rules
from windlass.host.linux.settings import SYSCTLS_VARIABLE
from windlass.model.nodes import TrafficMode
from windlass.nodes.config import NODE_NAME_VARIABLE, Config, DatapathType, parse

# What the chart alone decides. The Node's name is not said at all: it is another one on each Node.
DECIDED = {"apiServer", "runDirectory", "stateDirectory", "ovsRunDirectory", "ipamPlugin"}
ELSEWHERE = {"nodeName", "manifests", "kubeconfig"}

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OPTIONS = {field.encode_name: field for field in msgspec.structs.fields(Config)}


def agent_config(objects):
    return objects["ConfigMap", "windlass"]["data"]["windlass.yaml"]


# Without Helm ------------------------------------------------------------------------------------------------------


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == windlass.__version__


def test_every_option_of_the_agent_can_be_set_or_is_decided_by_the_chart():
    known = set(SCHEMA["properties"]["config"]["properties"])
    assert known == set(VALUES["config"])
    assert known | DECIDED | ELSEWHERE == set(OPTIONS)
    assert not known & (DECIDED | ELSEWHERE)


@pytest.mark.parametrize("option", VALUES["config"])
def test_the_defaults_are_the_agents_own(option):
    default = OPTIONS[option].default
    plain = default.value if isinstance(default, Enum) else list(default) if isinstance(default, tuple) else default
    assert VALUES["config"][option] == plain
    if isinstance(default, Enum):
        assert SCHEMA["properties"]["config"]["properties"][option]["enum"] == [one.value for one in type(default)]


def test_every_value_is_explained_above_it():
    lines = (CHART / "values.yaml").read_text().splitlines()
    unexplained = []
    for before, line in pairwise(lines):
        is_value = re.match(r" *\w+:", line) and not line.startswith("      ")
        in_resources = line.strip() == "requests:"  # as in any Pod
        group = re.match(r"\w+:$", line) and line[:-1] in {"image", "cni"}  # their members are
        if is_value and not in_resources and not group and "#" not in before:
            unexplained.append(line)
    assert unexplained == []


def test_every_value_is_in_the_schema():
    def compare(values, schema, path):
        properties = schema.get("properties", {})
        assert set(values) <= set(properties), path
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in properties[name]:
                assert properties[name]["additionalProperties"] is False
                compare(value, properties[name], f"{path}.{name}")

    compare(VALUES, SCHEMA, "values")


# With Helm ---------------------------------------------------------------------------------------------------------


@needs_helm
@pytest.mark.parametrize("mode", TrafficMode)
def test_the_agent_understands_its_configuration(mode, monkeypatch):
    monkeypatch.setenv(NODE_NAME_VARIABLE, "node-1")
    objects = rendered(f"config.trafficMode={mode.value}", "config.mtu=1400", "config.serviceCIDRs={10.96.0.0/12}")
    config = parse(agent_config(objects).encode(), "ConfigMap windlass")
    assert (config.node_name, config.traffic_mode, config.mtu) == ("node-1", mode, 1400)
    assert config.service_cidrs == ("10.96.0.0/12",)
    assert config.api_server == "https://10.0.0.1:6443"
    written = set(yaml.safe_load(agent_config(objects)))
    assert written == set(VALUES["config"]) | DECIDED


@needs_helm
def test_the_role_allows_exactly_what_the_agent_needs():
    objects = rendered()
    assert objects["ClusterRole", "windlass-agent"]["rules"] == rules()
    binding = objects["ClusterRoleBinding", "windlass-agent"]
    assert binding["roleRef"]["name"] == "windlass-agent"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "windlass-agent", "namespace": "windlass"}]


@needs_helm
def test_the_agents_paths_are_those_that_are_mounted():
    objects = rendered()
    config = parse(agent_config(objects).encode(), "ConfigMap windlass")
    agent = containers(objects["DaemonSet", "windlass-agent"])["agent"]
    mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert {config.run_directory, config.state_directory, config.ovs_run_directory} <= mounted
    assert {one["name"]: one.get("value") for one in agent["env"]} == {
        NODE_NAME_VARIABLE: None,
        SYSCTLS_VARIABLE: "/host/proc/sys/net",
    }
    assert "/host/proc/sys/net" in mounted
    netns = next(mount for mount in agent["volumeMounts"] if mount["mountPath"] == "/run/netns")
    assert netns["mountPropagation"] == "HostToContainer"


@needs_helm
def test_another_agent_leaves_the_switch_as_it_is():
    """Whatever is said of the agent, the switch's Pods stay what they are; and only their owner ends them."""
    before = rendered()
    after = rendered("config.logLevel=debug", "config.mtu=1400", "agent.maxUnavailable=3", "config.trafficMode=hybrid")
    switch = before["DaemonSet", "windlass-switch"]
    assert switch == after["DaemonSet", "windlass-switch"]
    assert switch["spec"]["updateStrategy"] == {"type": "OnDelete"}
    agents = [objects["DaemonSet", "windlass-agent"] for objects in (before, after)]
    assert agents[0]["spec"]["template"] != agents[1]["spec"]["template"], "agents would go on with the former options"
    assert agents[1]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3}


@needs_helm
@pytest.mark.parametrize("name", ["windlass-agent", "windlass-switch"])
def test_it_runs_on_every_linux_node_before_anything_else(name):
    spec = rendered("nodeSelector.example\\.org/network=windlass")["DaemonSet", name]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "example.org/network": "windlass"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "Default"
    assert spec["priorityClassName"] == "system-node-critical"


@needs_helm
def test_each_container_has_the_capabilities_that_it_needs():
    objects = rendered()
    found = {
        name: container["securityContext"]["capabilities"].get("add", [])
        for daemon_set in ("windlass-agent", "windlass-switch")
        for name, container in containers(objects["DaemonSet", daemon_set]).items()
    }
    assert found == {
        "install-cni": [],
        "agent": ["NET_ADMIN", "SYS_ADMIN"],
        "database": [],
        "ovsdb-server": [],
        "ovs-vswitchd": ["NET_ADMIN", "NET_BROADCAST", "NET_RAW"],
        "hand-over": ["NET_ADMIN", "SYS_ADMIN"],
    }


@needs_helm
def test_with_release_the_release_daemonset_replaces_the_agents():
    objects = rendered("release=true")
    assert ("DaemonSet", "windlass-agent") not in objects
    assert ("DaemonSet", "windlass-switch") in objects
    (release, *_) = objects["DaemonSet", "windlass-release"]["spec"]["template"]["spec"]["initContainers"]
    mounted = {mount["mountPath"] for mount in release["volumeMounts"]}
    folders = {argument.partition("=")[2] for argument in release["args"] if "/host/cni" in argument}
    assert {"/run/windlass", "/var/lib/windlass", "/run/openvswitch", "/host/proc/sys/net", *folders} <= mounted
    assert ("DaemonSet", "windlass-release") not in rendered()


@needs_helm
def test_each_container_is_confined_in_every_other_way():
    """Kubernetes gives a container no seccomp profile by itself, unless the kubelet is configured to."""
    objects = rendered()
    for daemon_set in ("windlass-agent", "windlass-switch"):
        for name, container in containers(objects["DaemonSet", daemon_set]).items():
            security = {**container["securityContext"]}
            assert security.pop("capabilities")["drop"] == ["ALL"], name
            assert security == {
                "privileged": False,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                "seLinuxOptions": {"level": "s0", "type": "spc_t"},
            }, name
        spec = objects["DaemonSet", daemon_set]["spec"]["template"]["spec"]
        assert not {"hostPID", "hostIPC"} & spec.keys()


@needs_helm
def test_containers_are_privileged_on_request():
    objects = rendered("privileged=true")
    for daemon_set in ("windlass-agent", "windlass-switch"):
        for container in containers(objects["DaemonSet", daemon_set]).values():
            assert container["securityContext"] == {"privileged": True}


@needs_helm
def test_only_the_userspace_datapath_needs_a_device():
    def paths(objects):
        volumes = objects["DaemonSet", "windlass-switch"]["spec"]["template"]["spec"]["volumes"]
        return {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}

    in_user_space = rendered(f"config.datapathType={DatapathType.NETDEV.value}")
    assert paths(in_user_space) - paths(rendered()) == {"/dev/net/tun"}


@needs_helm
def test_figures_for_the_prometheus_operator():
    assert ("PodMonitor", "windlass-agent") not in rendered()
    objects = rendered("podMonitor.enabled=true", "config.metricsBindAddress=:10249", "podMonitor.labels.release=main")
    monitor = objects["PodMonitor", "windlass-agent"]
    pods = objects["DaemonSet", "windlass-agent"]["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "main"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (agent,) = pods["spec"]["containers"]
    assert agent["ports"] == [{"name": endpoint["port"], "containerPort": 10249}]


@needs_helm
def test_a_missing_api_server_is_an_error_with_a_reason():
    error = refusal()
    assert "apiServer: set the URL of the API server" in error
    assert "is a Service, which Windlass itself provides" in error


@needs_helm
def test_a_pod_monitor_needs_metrics_that_prometheus_can_reach():
    settings = (API_SERVER, "podMonitor.enabled=true")
    for address in ("127.0.0.1:10249", "[::1]:10249", ""):
        error = refusal(*settings, f"config.metricsBindAddress={address}")
        assert "set an address that Prometheus can reach, such as --set config.metricsBindAddress=:10249" in error


@needs_helm
@pytest.mark.parametrize(
    ("setting", "named", "sentence"),
    [
        ("apiServer=10.0.0.1", "/apiServer", "does not match pattern"),
        ("apiServer=https://10.0.0.1:6443/api/v1", "/apiServer", "does not match pattern"),
        ("apiServers=https://10.0.0.1", "''", "'apiServers' not allowed"),
        ("config.trafficMode=overlay", "/config/trafficMode", "'encap', 'noEncap', 'hybrid'"),
        ("config.trafficmode=encap", "/config", "'trafficmode' not allowed"),
        ("config.nodeName=node-1", "/config", "'nodeName' not allowed"),
        ("config.runDirectory=/run/other", "/config", "'runDirectory' not allowed"),
        ("config.tunnelType=gre", "/config/tunnelType", "'geneve', 'vxlan'"),
        ("config.datapathType=dpdk", "/config/datapathType", "'system', 'netdev'"),
        ("config.mtu=big", "/config/mtu", "want integer"),
        ("config.mtu=70000", "/config/mtu", "65,535"),
        ("config.auditSeconds=0", "/config/auditSeconds", "minimum"),
        ("config.nodePortRange=many", "/config/nodePortRange", "does not match pattern"),
        ("config.nodePortAddresses={10.0.0.1}", "/config/nodePortAddresses/0", "does not match pattern"),
        ("config.nodePortAddresses=10.0.0.0/8", "/config/nodePortAddresses", "want array"),
        ("config.healthzBindAddress=10256", "/config/healthzBindAddress", "want string"),
        ("config.metricsBindAddress=localhost:80", "/config/metricsBindAddress", "does not match pattern"),
        ("config.bridge=a-name-of-16-let", "/config/bridge", "does not match pattern"),
        ("config.logLevel=loud", "/config/logLevel", "'debug', 'info', 'warning', 'error'"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
        ("image.repositry=x", "/image", "'repositry' not allowed"),
        ("cni.binaries=opt/cni/bin", "/cni/binaries", "does not match pattern"),
        ("agent.maxUnavailable=0", "/agent/maxUnavailable", "minimum"),
        ("agent.resources.requests.cpu=much", "/agent/resources/requests/cpu", "does not match pattern"),
        ("agent.resources.request.cpu=1", "/agent/resources", "'request' not allowed"),
        ("switch.logLevel=debug", "/switch/logLevel", "'emer', 'err', 'warn', 'info', 'dbg'"),
        ("nodeSelector.a.b=c", "/nodeSelector/a", "want string"),
        ("privileged=yes", "/privileged", "want boolean"),
        ("podMonitor.interval=often", "/podMonitor/interval", "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(setting, named, sentence):
    said = refusal(API_SERVER, setting)
    assert named in said
    assert sentence in said


@needs_helm
def test_windows_nodes_get_a_host_process_with_the_agents_own_paths(monkeypatch):
    monkeypatch.setenv(NODE_NAME_VARIABLE, "node-1")
    assert ("DaemonSet", "windlass-agent-windows") not in rendered()
    assert "windows.image is required" in refusal(API_SERVER, "windows.enabled=true")
    objects = rendered("windows.enabled=true", "windows.image=registry/windlass:windows")

    pod = objects["DaemonSet", "windlass-agent-windows"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["windowsOptions"] == {"hostProcess": True, "runAsUserName": "NT AUTHORITY\\SYSTEM"}
    assert (pod["hostNetwork"], pod["nodeSelector"]) == (True, {"kubernetes.io/os": "windows"})
    text = objects["ConfigMap", "windlass"]["data"]["windlass-windows.yaml"]
    assert set(yaml.safe_load(text)) == set(VALUES["config"]) | {"apiServer"}
    assert parse(text.encode(), "ConfigMap windlass").api_server == "https://10.0.0.1:6443"
    (item,) = pod["volumes"][0]["configMap"]["items"]
    (agent,) = pod["containers"]
    (mount,) = agent["volumeMounts"]
    assert agent["args"] == [f"--config={mount['mountPath']}/{item['path']}"]
