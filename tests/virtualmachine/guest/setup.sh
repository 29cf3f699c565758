#!/bin/sh
# Makes a virtual machine of a Debian that was just installed into a folder: runs in it (chroot), without a network.
set -eu

echo node >/etc/hostname
echo '127.0.0.1 localhost node' >/etc/hosts
# Nothing here has a network to wait for, an update to look for, or a disk to trim.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer dpkg-db-backup.timer \
    systemd-networkd-wait-online.service systemd-timesyncd.service
# The one interface leads to ssh, on the loopback of who runs QEMU, and nowhere else.
cat >/etc/systemd/network/10-ssh.network <<'UNIT'
[Match]
Name=eth0
[Network]
Address=10.0.2.15/24
LinkLocalAddressing=no
IPv6AcceptRA=no
UNIT
systemctl enable --quiet systemd-networkd.service ssh.service
printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\nMaxSessions 200\nGSSAPIAuthentication no\n' \
    >/etc/ssh/sshd_config.d/virtualmachine.conf
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nForwardToConsole=no\n' >/etc/systemd/journald.conf.d/virtualmachine.conf

python3 -m compileall -q /usr/local/lib/python3* >/dev/null || true

if [ -d /etc/selinux/default ]; then
    printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >/etc/selinux/config
    # Without SELinux on this machine a label is an attribute like any other.
    setfiles -F /etc/selinux/default/contexts/files/file_contexts / >/dev/null
fi
