#!/bin/sh
# Put the files of elastic-l1 on its machines, and start the daemons in the order in which they need one another.
# Wants Slurm, munge, MariaDB on the machines and root's SSH to them. Every step may be repeated.
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

# 1. The accounting host
put ctl 'systemd-sysusers; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chmod 0755 /usr/local/sbin/slurm-resume; chmod 0755 /usr/local/sbin/slurm-suspend; chmod 0755 /usr/local/sbin/slurm-resume-fail; chmod 0755 /usr/local/sbin/slurm-wait-for-nodes; chown slurm:slurm /etc/slurm/power_ssh_key; chmod 0400 /etc/slurm/power_ssh_key; chown slurm:slurm /etc/slurm/slurmdbd.conf; chmod 0600 /etc/slurm/slurmdbd.conf; chown mysql:mysql /etc/mysql/slurm.sql; chmod 0400 /etc/mysql/slurm.sql; chmod 0755 /usr/local/sbin/slurm-accounting-objects; systemctl enable --quiet munge mariadb slurmdbd slurmctld; systemctl restart munge; systemctl restart mariadb; systemctl restart slurmdbd; /usr/local/sbin/slurm-accounting-objects; systemctl restart slurmctld'

# 2. The nodes
put c1 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chmod 0755 /usr/local/sbin/slurm-node-power; chmod 0600 /root/.ssh/authorized_keys2; systemctl enable --quiet munge; systemctl restart munge'
put c2 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chmod 0755 /usr/local/sbin/slurm-node-power; chmod 0600 /root/.ssh/authorized_keys2; systemctl enable --quiet munge; systemctl restart munge'
put c3 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chmod 0755 /usr/local/sbin/slurm-node-power; chmod 0600 /root/.ssh/authorized_keys2; systemctl enable --quiet munge; systemctl restart munge'
put c4 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chmod 0755 /usr/local/sbin/slurm-node-power; chmod 0600 /root/.ssh/authorized_keys2; systemctl enable --quiet munge; systemctl restart munge'
