# Sets up the machine of a Node inside new mount, process and host name namespaces, and then runs as its first process.
# Arguments: the name of the Node, its disk (a folder that is kept across reboots), the folder of the lab, its cgroup,
# and a file to create when it is up.
set -eu
name=$1 lab=$3 cgroup=$4 ready=$5

hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc

# Keep both reachable: the mounts below hide their folders.
mount --bind "$2" /mnt
mount --bind "$lab" /media
disk=/mnt

# Overlay the folders of this machine: writes go to the machine's own disk.
for place in etc opt var; do
  mkdir -p "$disk/$place" "$disk/.work/$place"
  mount -t overlay "$place" -o "lowerdir=/$place,upperdir=$disk/$place,workdir=$disk/.work/$place" "/$place"
done
mkdir -p "$disk/containerd" "$disk/kubelet" /var/lib/containerd /var/lib/kubelet
mount --bind "$disk/containerd" /var/lib/containerd  # overlayfs for containers cannot use an overlay
mount --bind "$disk/kubelet" /var/lib/kubelet
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p "$lab"
mount --move /media "$lab"
mkdir -p /run/netns /run/lock /etc/cni/net.d /opt/cni/bin /var/log/pods /var/log/containers
rm -f /etc/resolv.conf
echo 'nameserver 127.0.0.1' >/etc/resolv.conf
echo "$name" >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" >/etc/hosts

# /sys of this network namespace, with the machine's cgroups in it.
mkdir -p "$disk/.cgroups"
mount --rbind /sys/fs/cgroup "$disk/.cgroups"
mount -t sysfs sysfs /sys
mount --rbind "$disk/.cgroups" /sys/fs/cgroup
umount -R "$disk/.cgroups"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then  # version 2: one tree
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || true
  done
  mkdir -p "/sys/fs/cgroup/$cgroup"
else
  for controller in /sys/fs/cgroup/*/; do
    case $controller in */unified/) continue ;; esac
    mkdir -p "$controller$cgroup"
  done
  for file in cpuset.cpus cpuset.mems; do  # empty in a new cgroup, where no process could run
    cat /sys/fs/cgroup/cpuset/$file >"/sys/fs/cgroup/cpuset/$cgroup/$file"
  done
fi

# The kubelet wants to set these for the whole machine: here it finds the values in files of this machine.
mkdir -p "$disk/.settings"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file="$disk/.settings/$(echo "${setting%=*}" | tr / _)"
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done
mount --make-rshared /

echo up >"$ready"
# The first process adopts orphaned processes; bash reaps them.
while :; do
  sleep 1d &
  wait $!
done
