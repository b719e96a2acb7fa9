"""A bridge without a tunnel, and ports of Pods on it, for tests with a real switch."""

from __future__ import annotations

from ipaddress import ip_address

from windlass.switch.bridge_specs import BridgeSpec
from windlass.switch.pod_ports import PodPort

SPEC = BridgeSpec(
    name="br-int",
    datapath_type="netdev",
    hwaddr="02:00:00:00:00:01",
    gateway="windlass-gw0",
    gateway_mac="02:00:00:00:00:02",
    uplink="eth0",
    tunnel=None,
)


def pod(number: int) -> PodPort:
    return PodPort(
        interface=f"pod{number}",
        container_id=f"container-{number}",
        namespace="default",
        name=f"web-{number}",
        mac=f"0a:58:0a:0a:00:{number:02x}",
        addresses=(ip_address(f"10.10.0.{number}"), ip_address(f"fd00:10::{number:x}")),
        netns=f"/run/netns/web-{number}",
    )
