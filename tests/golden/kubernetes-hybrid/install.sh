#!/bin/sh
# Put the files of kubernetes-hybrid on its machines, and start the daemons in the order in which they need one another.
# Wants Slurm, munge on the machines and root's SSH to them. Every step may be repeated.
set -eu
cd "$(dirname "$0")"

if grep -rqs '%secret:' --exclude=install.sh .; then
    echo "secrets are missing: put your own in the place of each mark that \`grep -r %secret: .\` shows, or render --with-secrets" >&2
    exit 1
fi

# HOST COMMAND: copy the host's files, then run a command there.
put() {
    echo "== $1"
    tar --create --owner=root --group=root --directory="$1" . | ssh "root@$1" tar --extract --no-overwrite-dir --directory=/
    ssh "root@$1" "set -e; $2"
}

# 1. The controllers
put ctl 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chown slurm:slurm /etc/slurm/jwt_hs256.key; chmod 0400 /etc/slurm/jwt_hs256.key; systemctl enable --quiet munge slurmctld slurmrestd; systemctl restart munge; systemctl restart slurmctld; systemctl restart slurmrestd'

# 2. The nodes
put n1 'systemd-sysusers; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmd; systemctl restart munge; systemctl restart slurmd'
put n2 'systemd-sysusers; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmd; systemctl restart munge; systemctl restart slurmd'
