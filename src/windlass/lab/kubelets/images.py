"""Builds the images of the lab's Pods: Windlass, CoreDNS, and those of the tests of Kubernetes.

They are built once per machine, except for the layer with Windlass' own code. The images of the tests are not pulled
from a registry: their programs are built from the same sources, on a userland of Debian packages. nginx and httpd are
stand-ins: the tests only check whether something answers on port 80.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from windlass import __version__
from windlass.lab.control import certificates
from windlass.lab.control.kubernetes_binaries import directory, path_of
from windlass.lab.kubelets import archives, debian
from windlass.lab.kubelets.archives import Image
from windlass.lab.sandbox.processes import output_of
from windlass.lab.sandbox.progress import Say

REPOSITORY = Path(__file__).parents[4]
WINDLASS = f"windlass:{__version__}"
COREDNS = "registry.k8s.io/coredns/coredns:v1.12.1"
_TESTS = "registry.k8s.io/e2e-test-images"
AGNHOST = f"{_TESTS}/agnhost:2.56"
# The suites about policies name older ones, for commands that have not changed since: cyclonus, network-policy-api.
OLDER_AGNHOSTS = (f"{_TESTS}/agnhost:2.43", f"{_TESTS}/agnhost:2.45")
PAUSE = "registry.k8s.io/pause:3.10.1"

# Packages that every Debian system has, and on which no package declares a dependency.
ESSENTIAL = ("base-files", "bash", "dash", "coreutils", "grep", "sed", "findutils", "mawk", "hostname", "libc-bin")
# Programs that scripts in the Pods of the tests call.
USERLAND = (
    *(*ESSENTIAL, "procps", "busybox"),
    *("curl", "wget", "netcat-openbsd", "iproute2", "iputils-ping", "bind9-dnsutils", "iperf", "iptables"),
)
_PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


def make(say: Say) -> list[Path]:
    """The archives to import on each Node."""
    folder = directory() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may bring up a cluster, too
        return [_archive(folder / f"{name}-{_short(*image.names)}.tar", image) for name, image in _images(folder, say)]


def _archive(target: Path, image: Image) -> Path:
    newest = max(layer.stat().st_mtime for layer in image.layers)
    if not target.exists() or target.stat().st_mtime < newest:
        archives.write(image, target)
    return target


def _images(folder: Path, say: Say) -> Iterator[tuple[str, Image]]:
    userland = _userland(folder, say)
    yield "pause", Image((PAUSE,), (_pause(folder),), entrypoint=("/pause",), user="65535:65535")
    coredns = _program("coredns", folder)
    yield "coredns", Image((COREDNS,), (coredns,), entrypoint=("/coredns",))
    agnhost = (userland, coredns, _program("agnhost", folder, certificate=True))  # some tests bring a DNS of their own
    yield "agnhost", Image((AGNHOST, *OLDER_AGNHOSTS), agnhost, entrypoint=("/agnhost",), command=("pause",))
    servers = tuple(f"{_TESTS}/{name}" for name in ("nginx:1.14-4", "nginx:1.15-4", "httpd:2.4.38-4", "httpd:2.4.39-4"))
    yield "servers", Image(servers, agnhost, command=("/agnhost", "netexec", "--http-port=80", "--udp-port=-1"))
    tools = (f"{_TESTS}/jessie-dnsutils:1.7", f"{_TESTS}/busybox:1.37.0-1", _IPTABLES)
    yield "tools", Image(tools, (userland,), command=("sh",))
    conntrack = _program("regression-issue-74839", folder)
    yield "conntrack", Image((f"{_TESTS}/regression-issue-74839:1.2",), (conntrack,), ("/regression-issue-74839",))
    yield "windlass", _windlass(folder, say)


_IPTABLES = "registry.k8s.io/build-image/distroless-iptables:v0.7.14"


# Layers -----------------------------------------------------------------------------------------------------------


def _userland(folder: Path, say: Say) -> Path:
    target = folder / f"userland-{_short(*USERLAND)}.layer"
    if target.exists():
        return target
    say(f"unpacking {len(USERLAND)} Debian packages for the tests' images")
    root = folder / "userland"
    shutil.rmtree(root, ignore_errors=True)
    debian.unpack(USERLAND, root)
    _settle(root)
    return archives.layer(root, target)


def _settle(root: Path) -> None:
    """Adds what the authors of the original images would have added."""
    _settle_base(root)
    links = {"bin/nc": "nc.openbsd", "usr/local/bin/iperf": "/usr/bin/iperf"}
    links |= dict.fromkeys((f"usr/sbin/{name}" for name in _XTABLES), "xtables-nft-multi")
    listed = output_of(str(root / "bin/busybox"), "--list")
    present = {entry.name for place in ("bin", "sbin", "usr/bin", "usr/sbin") for entry in (root / place).iterdir()}
    present |= {Path(link).name for link in links}
    links |= {f"usr/bin/{name}": "/bin/busybox" for name in listed.split() if name not in present}
    _link(root, links)
    (root / "uploads").mkdir()
    (root / "etc/wgetrc").write_text("tries = 1\n")  # a test relies on a single attempt, as with wget of busybox


_XTABLES = ("iptables", "ip6tables", "iptables-save", "ip6tables-save", "iptables-restore")


def _settle_base(root: Path) -> None:
    """Does what the maintainer scripts of the packages would do."""
    for name in ("tmp", "proc", "sys", "dev", "etc", "root", "run", "usr/local/bin", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    shutil.rmtree(root / "var/run", ignore_errors=True)
    _link(root, {"bin/sh": "dash", "usr/bin/awk": "mawk", "var/run": "/run"})
    users = ("root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534::/:/bin/false")
    (root / "etc/passwd").write_text("\n".join(users) + "\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")


def _link(root: Path, links: Mapping[str, str]) -> None:
    for link, target in links.items():
        if not (root / link).is_symlink() and not (root / link).exists():
            (root / link).symlink_to(target)


def _pause(folder: Path) -> Path:
    target = folder / "pause.layer"
    if not target.exists():
        root = emptied(folder / "pause")
        (root.parent / "pause.c").write_text(_PAUSE_SOURCE)
        output_of("musl-gcc", "-Os", "-s", "-static", "-o", str(root / "pause"), str(root.parent / "pause.c"))
        archives.layer(root, target)
    return target


def _program(name: str, folder: Path, *, certificate: bool = False) -> Path:
    """A layer with one program. `certificate` adds one for localhost, which a command of agnhost reads."""
    target = folder / f"{name}.layer"
    if not target.exists() or target.stat().st_mtime < path_of(name).stat().st_mtime:
        root = emptied(folder / name)
        shutil.copy(path_of(name), root / name)
        if certificate:
            issued = certificates.authority(emptied(folder / "authority"))
            certificates.issue(issued, root, "localhost", alternatives=["DNS:localhost", "IP:127.0.0.1"], days=3650)
        archives.layer(root, target)
    return target


# Windlass ---------------------------------------------------------------------------------------------------------


def _windlass(folder: Path, say: Say) -> Image:
    """The same layout as deploy/image/Containerfile."""
    return Image(
        (WINDLASS,),
        (_windlass_base(folder, say), _windlass_itself(folder)),
        entrypoint=("/opt/windlass/bin/windlass",),
        environment={"PATH": "/opt/windlass/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def _windlass_base(folder: Path, say: Say) -> Path:
    """Debian packages and the locked Python packages; reused until one of the lists changes."""
    packages, lock = REPOSITORY / "deploy/image/packages", REPOSITORY / "requirements-agent.lock"
    target = folder / f"windlass-base-{_short(*ESSENTIAL, packages.read_text(), lock.read_text(), *_COMPILED)}.layer"
    if target.exists():
        return target
    say("building the image of Windlass: Debian and Python packages")
    root = folder / "windlass-base"
    shutil.rmtree(root, ignore_errors=True)
    names = [line.partition("#")[0].strip() for line in packages.read_text().splitlines()]
    debian.unpack([*ESSENTIAL, *(name for name in names if name)], root)
    _settle_base(root)
    _link(root, {"usr/sbin/ovs-vswitchd": "/usr/lib/openvswitch-switch/ovs-vswitchd"})
    library = str(root / "opt/windlass/lib")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
    # For Debian's Python, not for the one that runs this.
    platform = ("--only-binary=:all:", "--python-version=3.11", "--implementation=cp", f"--target={library}")
    output_of(*pip, *platform, "-r", str(lock))
    _compile(root)
    return archives.layer(root, target)


def _windlass_itself(folder: Path) -> Path:
    root = emptied(folder / "windlass-itself")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src/windlass", root / "opt/windlass/lib/windlass", ignore=ignored)
    for source, place in (("build/cni/windlass-cni", "cni/windlass-cni"), ("deploy/image/windlass", "bin/windlass")):
        target = root / "opt/windlass" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / source, target)
        target.chmod(0o755)
    _compile(root)
    return archives.layer(root, folder / "windlass-itself.layer")


_COMPILED = ("usr/lib/python3", "usr/lib/python3.11", "opt/windlass/lib")


def _compile(root: Path) -> None:
    """Compiles to bytecode, as the Containerfile does: otherwise each start of the agent and each probe compiles again.

    It uses Debian's Python, which will run it, and no modification times, which a layer does not have.
    """
    places = [str(root / place) for place in _COMPILED if (root / place).exists()]
    compiler = ("/usr/bin/python3", "-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash")
    output_of(*compiler, "-s", str(root), *places)


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _short(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
