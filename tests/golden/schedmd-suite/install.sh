#!/bin/sh
# Put the files of schedmd-suite on its machines, and start the daemons in the order in which they need one another.
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
put suite-ctl 'systemd-sysusers; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; chown slurm:slurm /etc/slurm/slurmdbd.conf; chmod 0600 /etc/slurm/slurmdbd.conf; chown mysql:mysql /etc/mysql/slurm.sql; chmod 0400 /etc/mysql/slurm.sql; chmod 0755 /usr/local/sbin/slurm-accounting-objects; systemctl enable --quiet munge mariadb slurmdbd slurmctld; systemctl restart munge; systemctl restart mariadb; systemctl restart slurmdbd; /usr/local/sbin/slurm-accounting-objects; systemctl restart slurmctld'

# 2. The controllers
put fed1 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmctld slurmd; systemctl restart munge; systemctl restart slurmctld; systemctl restart slurmd'
put fed2 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmctld slurmd; systemctl restart munge; systemctl restart slurmctld; systemctl restart slurmd'
put fed3 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmctld slurmd; systemctl restart munge; systemctl restart slurmctld; systemctl restart slurmd'

# 3. The nodes
put suite-sim1 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmd; systemctl restart munge; systemctl restart slurmd'
put suite-sim2 'systemd-sysusers; systemctl daemon-reload; systemd-tmpfiles --create /etc/tmpfiles.d/cluster-users.conf; systemd-tmpfiles --create /etc/tmpfiles.d/slurm.conf; [ ! -e /etc/munge/munge.key ] || chown munge:munge /etc/munge/munge.key; [ ! -e /etc/munge/munge.key ] || chmod 0400 /etc/munge/munge.key; systemctl enable --quiet munge slurmd; systemctl restart munge; systemctl restart slurmd'
