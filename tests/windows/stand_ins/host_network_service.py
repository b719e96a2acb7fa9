"""The Host Network Service that compute_network.c stands in for: one call for each run of this Linux program.

Its state is in the folder of Wine's prefix. What it makes is real, in the network namespace that it runs in:
- a network on a NIC: a veth pair. One end, `vEthernet (<NIC>)` to Windows, gets the NIC's addresses and routes. Once
  netsh has renamed it, the other end is `<NIC>-far`.
- an endpoint in a namespace: a TAP device, eth0 in the Linux namespace that has the ID as its name; who opens it, reads
  and writes the Pod's frames. To Windows it is `vEthernet (<endpoint>)` in another compartment. Wine reads only its own
  namespace, so there an empty bridge with the endpoint's name stands for it (not every kernel has dummy interfaces).
At `<NIC>-far` a packet socket reads and writes frames; the kernel itself takes none. Senders fill in checksums.

Windows' names of interfaces are their aliases in Linux, whose names are too short.

Files in `<prefix>/drive_c` change what it does: `fault` (a call, and the code that it is refused with, or `hang`),
`late` (the interface of an endpoint does not appear by itself), `no-extension` (Open vSwitch's driver is missing),
`forgets` (a network is created and deleted without moving addresses).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
import zlib
from ipaddress import ip_address, ip_network
from pathlib import Path

PREFIX = Path(os.environ["WINEPREFIX"])
DRIVE = PREFIX / "drive_c"
NAMESPACES = Path("/run/netns")
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
IN_POD = "2"  # the group of interfaces that belong to Pods: iphlpapi.c puts each in a compartment of its own

E_FAIL = 0x80004005
NO_NETWORK, NO_ENDPOINT, NOT_FOUND = 0x803B0001, 0x803B0002, 0x80070490
NO_ADAPTER, NETWORK_EXISTS, ATTACHED, BAD_JSON = 0x803B0006, 0x803B0010, 0x803B0014, 0x803B001B
INVALID_IP, IN_ANOTHER, IN_USE, NOT_ATTACHED = 0x803B001E, 0x803B002B, 0x803B002C, 0x803B0034
OVS_EXTENSION = "583CC151-73EC-4A6A-8B47-578297AD7623"


class Refused(Exception):
    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code


# ---- interfaces ----


def ip(*lines: str, namespace: str = "") -> None:
    where = ["-n", namespace] if namespace else []
    done = subprocess.run(
        ["ip", *where, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(INVALID_IP, done.stderr.strip().replace("\n", "; "))


def ip_json(*words: str) -> list[dict]:
    return json.loads(
        subprocess.run(["ip", "-json", *words], capture_output=True, text=True, check=True).stdout or "[]"
    )


def close_to_kernel(name: str, *, closed: bool = True) -> None:
    """Frames that arrive there are seen by packet sockets alone."""
    subprocess.run(["tc", "qdisc", "delete", "dev", name, "clsact"], capture_output=True, check=False)
    if closed:
        drop_all = "1,6 0 0 2"  # a program of one instruction: return TC_ACT_SHOT
        subprocess.run(["tc", "qdisc", "add", "dev", name, "clsact"], check=True)
        command = ["tc", "filter", "add", "dev", name, "ingress", "bpf", "da", "bytecode", drop_all]
        subprocess.run(command, check=True)


def fill_in_checksums(name: str) -> None:
    """Without offloads, as no NIC follows that would do it."""
    command = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP16x", name.encode(), ctypes.addressof(command))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, request)


def configuration(name: str) -> tuple[list[str], list[str]]:
    """Commands, without the device, that give an interface the addresses and routes that this one has."""
    (link,) = ip_json("address", "show", "dev", name)
    addresses = [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"]
    said = subprocess.run(["ip", "route", "show", "dev", name], capture_output=True, text=True, check=True).stdout
    flags = {"linkdown", "onlink", "dead"}
    routes = [
        " ".join(word for word in line.split() if word not in flags)
        for line in said.splitlines()
        if "proto kernel" not in line
    ]
    return addresses, routes


def take_over(source: str, target: str) -> None:
    addresses, routes = configuration(source)
    ip(f"address flush dev {source} scope global", *(f"address add {a} dev {target}" for a in addresses))
    ip(*(f"route replace {route} dev {target}" for route in sorted(routes, key=lambda route: "via" in route)))


# ---- networks ----


def create_network(state: dict, _parent: str, wanted: dict) -> str:
    policies = {policy["Type"]: policy["Settings"] for policy in wanted.get("Policies", ())}
    nic = policies.get("NetAdapterName", {}).get("NetworkAdapterName", "")
    if wanted.get("Type") != "Transparent" or not wanted.get("Name"):
        raise Refused(BAD_JSON, "Type")
    links = {link["ifname"]: link for link in ip_json("link", "show")}
    if nic not in links or any(network["nic"] == nic for network in state["networks"].values()):
        raise Refused(NO_ADAPTER, nic)
    if any(network["document"]["Name"] == wanted["Name"] for network in state["networks"].values()):
        raise Refused(NETWORK_EXISTS)
    for ipam in wanted.get("Ipams", ()):
        for subnet in ipam["Subnets"]:
            ip_network(subnet["IpAddressPrefix"])
    own = make_interface(f"vnic-{links[nic]['ifindex']}", f"{nic}-far0", links[nic])
    ip(f"link set {own} alias 'vEthernet ({nic})'")
    if not (DRIVE / "forgets").exists():
        take_over(nic, own)
    else:
        ip(f"address flush dev {nic} scope global")
    close_to_kernel(nic)
    guid = str(uuid.uuid4())
    document = {**wanted, "ID": guid.upper()}
    state["networks"][guid] = {"document": document, "nic": nic, "interface": own, "extension": False}
    return guid


def index_of(name: str) -> int:
    """Always the same: Wine 8 never forgets the first index of a name. windows_machines.py has this, too."""
    return 1000 + zlib.crc32(name.encode()) % 1_000_000


def make_interface(name: str, far: str, nic: dict) -> str:
    ip(
        f"link add {name} index {index_of(name)} address {nic['address']} mtu {nic['mtu']} type veth "
        f"peer name {far} index {index_of(far)}",
        f"link set {far} up addrgenmode none",
        f"link set {name} up",
    )
    close_to_kernel(far)
    fill_in_checksums(name)
    return name


def rename(state: dict, alias: str, new_name: str) -> str:
    """By another pair: Wine 8 would not notice another name."""
    for network in state["networks"].values():
        nic, old = network["nic"], network["interface"]
        if alias == f"vEthernet ({nic})" and old != new_name:
            (link,) = ip_json("link", "show", "dev", nic)
            take_over(old, make_interface(new_name, f"{nic}-far", link))
            ip(f"link delete {old}")
            network["interface"] = new_name
            return ""
    raise Refused(NOT_FOUND)


def delete_network(state: dict, guid: str) -> None:
    if any(endpoint["network"] == guid for endpoint in state["endpoints"].values()):
        raise Refused(IN_USE)
    network = state["networks"].pop(guid)
    close_to_kernel(network["nic"], closed=False)
    name = network["interface"]
    if not (DRIVE / "forgets").exists():
        take_over(name, network["nic"])
    ip(f"link delete {name}")


# ---- endpoints ----


def create_endpoint(state: dict, parent: str, wanted: dict) -> str:
    network = state["networks"].get(parent)
    if network is None:
        raise Refused(NO_NETWORK)
    if wanted["HostComputeNetwork"].lower() != parent or not wanted.get("Name"):
        raise Refused(BAD_JSON, "HostComputeNetwork")
    octets = wanted["MacAddress"].split("-")
    if len(octets) != 6 or any(len(octet) != 2 or int(octet, 16) > 255 for octet in octets):
        raise Refused(BAD_JSON, "MacAddress")
    subnets = [
        ip_network(subnet["IpAddressPrefix"]) for ipam in network["document"]["Ipams"] for subnet in ipam["Subnets"]
    ]
    for configured in wanted["IpConfigurations"]:
        if not any(ip_address(configured["IpAddress"]) in subnet for subnet in subnets):
            raise Refused(INVALID_IP, configured["IpAddress"])
    guid = str(uuid.uuid4())
    document = {**wanted, "ID": guid.upper(), "HostComputeNamespace": str(uuid.UUID(int=0))}
    state["endpoints"][guid] = {"document": document, "network": parent, "containers": []}
    return guid


def remove_interfaces(document: dict, namespace: str) -> None:
    """Those that exist."""
    subprocess.run(["ip", "link", "delete", document["Name"]], capture_output=True, check=False)
    subprocess.run(["ip", "-n", namespace, "link", "delete", "eth0"], capture_output=True, check=False)


def delete_endpoint(state: dict, guid: str) -> None:
    document = state["endpoints"].pop(guid)["document"]
    remove_interfaces(document, document["HostComputeNamespace"].lower())


def attach(document: dict, namespace: str) -> None:
    name, mac = document["Name"], document["MacAddress"].replace("-", ":")
    try:
        ip(
            "tuntap add dev eth0 mode tap",
            f"link set eth0 address {mac}",
            "link set lo up",
            "link set eth0 up",
            *(f"address add {c['IpAddress']}/{c['PrefixLength']} dev eth0" for c in document["IpConfigurations"]),
            *(
                f"route add {route['DestinationPrefix']} via {route['NextHop']} dev eth0"
                for route in document["Routes"]
            ),
            namespace=namespace,
        )
        late = (DRIVE / "late").exists()
        ip(
            f"link add {name} index {index_of(name)} type bridge",
            f"link property add dev {name} altname {namespace}",  # iphlpapi.c reads it
            f"link set {name} group {IN_POD}" + ("" if late else f" alias 'vEthernet ({name})'"),
        )
    except Refused:
        remove_interfaces(document, namespace)
        raise


# ---- namespaces ----


def create_namespace(_state: dict, _parent: str, _wanted: dict) -> str:
    guid = str(uuid.uuid4())
    subprocess.run(["ip", "netns", "add", guid], check=True)
    return guid


def modify_namespace(state: dict, namespace: str, change: dict) -> None:
    endpoint = state["endpoints"].get(change["Settings"]["EndpointId"].lower())
    if endpoint is None:
        raise Refused(NO_ENDPOINT)
    document = endpoint["document"]
    now = document["HostComputeNamespace"].lower()
    if change["ResourceType"] != "Endpoint" or change["RequestType"] not in {"Add", "Remove"}:
        raise Refused(BAD_JSON)
    if change["RequestType"] == "Remove":
        if now != namespace:
            raise Refused(NOT_ATTACHED)
        remove_interfaces(document, namespace)
        document["HostComputeNamespace"] = str(uuid.UUID(int=0))
        return
    if now != str(uuid.UUID(int=0)):
        raise Refused(ATTACHED if now == namespace else IN_ANOTHER)
    attach(document, namespace)
    document["HostComputeNamespace"] = namespace


# ---- the first version ----


def hns_call(state: dict, request: str, body: str) -> str:
    method, path = request.split(" ")
    _, collection, guid, *rest = path.lower().split("/")
    item = state[collection].get(guid)
    if item is None:
        return json.dumps({"Success": False, "Error": "The network was not found. "})
    if method == "POST" and rest == ["attach"]:
        item["containers"].append(json.loads(body)["ContainerID"])
    elif method == "POST" and collection == "networks":
        for extension in json.loads(body)["Extensions"]:
            if extension["Id"] == OVS_EXTENSION:
                item["extension"] = extension["IsEnabled"]
    output = dict(item["document"])
    if collection == "networks":
        others = {
            "Id": "E7C3B2F0-F3C5-48DF-AF2B-10FED6D72E7A",
            "IsEnabled": False,
            "Name": "Windows Filtering Platform",
        }
        own = {"Id": OVS_EXTENSION, "IsEnabled": item["extension"], "Name": "Open vSwitch Extension"}
        output["Extensions"] = [others] if (DRIVE / "no-extension").exists() else [others, own]
    return json.dumps({"Success": True, "Output": output})


# ---- calls ----

CREATE = {"Network": create_network, "Endpoint": create_endpoint, "Namespace": create_namespace}
DELETE = {"Network": delete_network, "Endpoint": delete_endpoint}
ABSENT = {"Network": NO_NETWORK, "Endpoint": NO_ENDPOINT, "Namespace": NOT_FOUND}


def items(state: dict, kind: str) -> dict[str, dict]:
    """The documents, by ID."""
    if kind != "Namespace":
        return {guid: item["document"] for guid, item in state[f"{kind.lower()}s"].items()}
    names = [path.name for path in NAMESPACES.glob("*-*-*-*-*")]
    return {name: {"ID": name} for name in names}


def answer(state: dict, call: str, target: str, body: str) -> str:
    if call == "HNSCall":
        return hns_call(state, target, body)
    if call == "rename":
        return rename(state, target, body)
    verb, kind = next(
        (verb, kind)
        for verb in ("Enumerate", "Open", "Modify", "Query", "Delete", "Create")
        for kind in CREATE
        if call.startswith(f"Hcn{verb}{kind}")
    )
    content = json.loads(body) if body else {}
    if verb in {"Enumerate", "Query", "Create"} and content.get("SchemaVersion", {}).get("Major") != 2:
        raise Refused(BAD_JSON, "SchemaVersion")
    found = items(state, kind)
    if verb == "Enumerate":
        wanted = json.loads(content.get("Filter") or "{}")
        return json.dumps([g.upper() for g, d in found.items() if all(d.get(k) == v for k, v in wanted.items())])
    if verb == "Create":
        return CREATE[kind](state, target, content)
    if target not in found:
        raise Refused(ABSENT[kind])
    if verb == "Query":
        return json.dumps(found[target])
    if verb == "Modify":
        modify_namespace(state, target, content)
    if verb == "Delete" and kind == "Namespace":
        subprocess.run(["ip", "netns", "delete", target], check=True)
    elif verb == "Delete":
        DELETE[kind](state, target)
    return ""


def refuse_if_told(call: str) -> None:
    fault = DRIVE / "fault"
    while fault.exists():
        name, code = fault.read_text().split()
        if name != call:
            return
        if code != "hang":
            raise Refused(int(code, 0))
        time.sleep(0.05)


def handle(call: str, target: str, body: str) -> tuple[int, str, str]:
    """The code, the answer and the error record."""
    place = PREFIX / "host-network-service.json"
    try:
        refuse_if_told(call)
        with (PREFIX / "host-network-service.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(place.read_text()) if place.exists() else {"networks": {}, "endpoints": {}}
            said = answer(state, call, target, body)
            new = place.with_suffix(".new")
            new.write_text(json.dumps(state))
            new.replace(place)
    except Refused as refused:
        return refused.code, "", json.dumps({"Error": str(refused)}) if str(refused) else ""
    except (KeyError, ValueError, TypeError, StopIteration) as error:
        return BAD_JSON, "", json.dumps({"Error": repr(error)})
    except Exception as error:  # noqa: BLE001 - a bug here must not look like an answer of Windows
        return E_FAIL, "", json.dumps({"Error": f"the stand-in failed: {error!r}"})
    return 0, said, ""


def main() -> int:
    call, target, *files = sys.argv[1:]
    if call == "rename":
        return int(handle(call, target, files[0])[0] != 0)
    code, said, reason = handle(call, target, Path(files[0]).read_text())
    Path(files[1]).write_text(f"{code:x}\n{said}\n{reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
