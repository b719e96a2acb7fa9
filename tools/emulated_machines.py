"""An emulated machine with the file system of this one: its initramfs, its first processes, its qemu command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# A module that two others need is listed twice, and refused the second time.
FIRST_INIT = """\
#!/bin/busybox sh
for module in /modules/*; do /bin/busybox insmod $module 2>/dev/null; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro root /root
exec /bin/busybox switch_root /root "$SECOND_INIT"
"""


def cpio(files: dict[str, bytes]) -> Iterator[bytes]:
    """The files as the kernel reads an initramfs (the format "newc"), with the directories for them and the root."""
    directories = dict.fromkeys(("bin", "modules", "root"), b"")
    for name, content in [*directories.items(), *files.items(), ("TRAILER!!!", b"")]:
        mode = 0o040755 if name in directories else 0o100755
        path = name.encode() + b"\0"
        inode, owner, group, links, modified, device = 0, 0, 0, 1, 0, (0, 0, 0, 0)
        numbers = (inode, mode, owner, group, links, modified, len(content), *device, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers) + path
        yield header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)


def qemu(image: Path, initramfs: Path, init: Path, memory: str, results: Path, writable: Path) -> list[str]:
    share = "security_model=none,multidevs=remap"
    return [
        "qemu-system-x86_64", "-M", "q35", "-cpu", "max", "-smp", "2", "-m", memory,
        "-accel", "tcg,thread=multi,tb-size=512",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-virtfs", f"local,mount_tag=root,path=/,readonly=on,{share}",
        "-virtfs", f"local,mount_tag=results,path={results},{share}",
        "-virtfs", f"local,mount_tag=writable,path={writable},{share}",
        "-kernel", str(image), "-initrd", str(initramfs),
        # Mitigations of speculative execution are slow to emulate, and useless here. The kernel passes parameters that
        # it does not know, such as SECOND_INIT, to its first process as environment variables.
        "-append", f"console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 SECOND_INIT={init}",
    ]  # fmt: skip


# The first process on the file system, which is read-only. It mounts a layer in memory over it for all writes, and
# makes that the root by pivot_root, so that the kernel also finds modprobe and its modules.
SECOND_INIT = """\
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME={home} COLUMNS=150 LC_ALL=C.UTF-8
unset SECOND_INIT
mount -t tmpfs tmpfs /mnt
mkdir /mnt/written /mnt/work /mnt/root
modprobe -d {kernel} overlay
mount -t overlay -o lowerdir=/,upperdir=/mnt/written,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mkdir -p lib/modules
ln -sfn {kernel}/lib/modules/{release} lib/modules/{release}
pivot_root . mnt
cd /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/results
mount -t 9p -o trans=virtio,version=9p2000.L results /run/results
mount -t 9p -o trans=virtio,version=9p2000.L writable {writable}
# For kubelets: a disk that may have overlays, and cgroups.
mount -t tmpfs tmpfs /var/tmp
mount -t tmpfs tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$controller
  mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller
done
ip link set lo up
echo '{begin}'
cut -d' ' -f1 /proc/uptime > /run/results/booted
# ovs-vswitchd 3.1.0 reads the number of CPUs only ten seconds after boot (fixed by fff04b838). Started earlier it may
# have no thread for upcalls, and every packet is lost.
until (( $(cut -d. -f1 /proc/uptime) > 10 )); do sleep 1; done
export WINDLASS_LAB_TIME_SCALE={time_scale}
cd {repository}
# Through a pipe, so that there are no progress bars.
{{ modprobe -a {modules} && {command}; }} 2>&1 </dev/null | cat
echo ${{PIPESTATUS[0]}} > /run/results/status
echo '{end}'
sleep 1 # the kernel's last words overtake what is still on its way to the console
echo o > /proc/sysrq-trigger
sleep 60
"""
