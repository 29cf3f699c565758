#!/bin/sh
# A machine for one node, on this machine: it has its own mounts, devices and control groups, and this machine's kernel
# and network.
#
#   machine.sh FOLDER NAME GPUS KEPT...    as root, in a separate mount namespace (unshare --mount)
#
# It sees this machine's whole file system. Writes go to memory, except below /var/lib/kubelet and the container
# runtimes' folders, which are in FOLDER. NAME is the root below each hierarchy of control groups. There are GPUS cards in
# /dev, with NVIDIA's numbers and nothing behind them. KEPT are folders that are not layered. FOLDER/ready exists when
# everything is ready. The machine ends with its last process.
set -eu
folder=$1 name=$2 gpus=$3
shift 3

groups_at() { # where this machine has the hierarchy of these controllers
    case $1 in
    '') if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; else echo /sys/fs/cgroup/unified; fi ;;
    *) first=${1%%,*} && echo "/sys/fs/cgroup/${first#name=}" ;;
    esac
}

if [ "$name" != inside ]; then
    while IFS=: read -r _ controllers _; do
        at=$(groups_at "$controllers")
        [ -d "$at" ] || continue
        mkdir -p "$at/$name/system"
        for cpus in cpuset.cpus cpuset.mems; do
            for group in "$at/$name" "$at/$name/system"; do
                [ ! -e "$at/$cpus" ] || cat "$at/$cpus" >"$group/$cpus"
            done
        done
        echo $$ >"$at/$name/cgroup.procs"
    done </proc/self/cgroup
    exec unshare --cgroup sh "$0" "$folder" inside "$gpus" "$@"
fi

mount --make-rprivate /
here=$folder/machine
mkdir -p "$here"
mount -t tmpfs -o mode=755 machine "$here"
mkdir "$here/upper" "$here/work" "$here/root"
root=$here/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$here/upper,workdir=$here/work" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=755 dev "$root/dev"
for kept in "$@"; do
    mkdir -p "$root/$kept"
    mount --rbind "$kept" "$root/$kept"
done
mkdir -p "$root/$folder"
mount --bind "$folder" "$root/$folder"
for place in var/lib/kubelet var/lib/containerd var/lib/containers var/log/pods; do
    mkdir -p "$folder/$place" "$root/$place"
    mount --bind "$folder/$place" "$root/$place"
done
rm -rf "$root/etc/cni" "$root/etc/cdi" "$root/etc/containerd" "$root/etc/crio" "$root/etc/nvidia-container-runtime"

cd "$root"
mkdir -p old dev/pts dev/shm dev/mqueue run/lock
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 kmsg:1:11 tty:5:0 nvidiactl:195:255 nvidia-uvm:511:0; do
    IFS=: read -r device major minor <<EOF
$device
EOF
    mknod -m 666 "dev/$device" c "$major" "$minor"
done
card=0
while [ "$card" -lt "$gpus" ]; do
    mknod -m 666 "dev/nvidia$card" c 195 "$card"
    card=$((card + 1))
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
pivot_root . old
umount -l /old

# The control groups again, as seen from inside the machine.
unified=
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || unified=yes
umount -l -R /sys/fs/cgroup
if [ -n "$unified" ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    echo $$ >/sys/fs/cgroup/system/cgroup.procs
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || true
    done
else
    mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        at=$(groups_at "$controllers")
        mkdir -p "$at"
        case $controllers in
        '') mount -t cgroup2 cgroup2 "$at" ;;
        name=*) mount -t cgroup -o "none,$controllers" cgroup "$at" ;;
        *) mount -t cgroup -o "$controllers" cgroup "$at" ;;
        esac
        echo $$ >"$at/system/cgroup.procs"
    done </proc/self/cgroup
fi

# Kubelet sets these values: here in files that nothing else reads.
for tunable in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    mkdir -p "/run/tunables/${tunable%/*}"
    cat "/proc/sys/$tunable" >"/run/tunables/$tunable"
    mount --bind "/run/tunables/$tunable" "/proc/sys/$tunable"
done
mount --make-rshared /
touch "$folder/ready"
exec sleep infinity
