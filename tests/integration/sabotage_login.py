"""Sabotages of login.yml: of login hosts, of who can log in where, and of auth/slurm."""

from __future__ import annotations

from sabotage import MOUNTS_OF, NETWORK_OF, Sabotage, at_once, drop_in, wrapper
from sabotage_hosts import dropped_from, on_host

# A daemon that accepts every credential, in place of slurmd.
CREDULOUS = """
import socket
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("/run/slurm/sack.socket")
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(bytes(4))
"""
ONLY_WITH_A_JOB, PAM = "only_while_they_have_a_job", "/etc/pam.d/sshd"
DENIED = "/etc/ssh/sshd_config.d/denied.conf"
LOGIN = [
    on_host(
        "log_in_to_login_hosts",
        "ctl",
        "rm /etc/nologin",
        "echo 'Users log in to login.' > /etc/nologin",
        "alice can log in to ctl",
    ),
    on_host(
        "log_in_to_login_hosts",
        "login",
        "touch /etc/nologin",
        "rm /etc/nologin",
        "alice cannot log in to login",
    ),
    on_host(
        "log_in_to_login_hosts",
        "login",
        f"echo 'DenyUsers bob' > {DENIED}; systemctl restart ssh; rm {DENIED}",
        "systemctl restart ssh",
        "not allowed because listed in DenyUsers",
    ),
    on_host(
        "credential_of_every_host_is_accepted",
        "n2",
        "chmod 0700 /run/slurm/sack.socket",
        "chmod 0777 /run/slurm/sack.socket",
        "n2 issues alice no credential: cannot connect to /run/slurm/sack.socket (mode 700): "
        "Permission denied",
    ),
    on_host(
        "key_is_rotated",
        "n2",
        *drop_in("slurmd", "Environment=SLURM_SACK_JWKS=/none"),
        "each host to sign with old and accept old new; last state: n2 signs with old, accepts old",
    ),
    *(
        on_host(
            ONLY_WITH_A_JOB, "n1", f"sed -i.right '{edit}' {PAM}", f"mv {PAM}.right {PAM}", message
        )
        for edit, message in (
            ("/pam_slurm_adopt/d", "can log in to n1 without a job there"),
            ("s/adopt.so/& action_no_jobs=ignore/", "can log in to n1 without a job there"),
        )
    ),
    on_host(
        ONLY_WITH_A_JOB,
        "n1",
        "touch /etc/nologin",
        "rm /etc/nologin",
        "bob cannot log in to n1, where job",
    ),
    on_host(
        ONLY_WITH_A_JOB,
        "n2",
        f"sed -i.right 's/adopt.so/& nodename=other/' {PAM}",
        f"mv {PAM}.right {PAM}",
        "bob cannot log in to n2, where job",
    ),
    on_host(
        "get_slurm_conf_from_slurmctld",
        "login",
        "echo '# drift' >> /run/slurm/conf/slurm.conf",
        "systemctl restart sackd",
        "login: /run/slurm/conf/slurm.conf is not the controller's",
    ),
    on_host(
        "get_slurm_conf_from_slurmctld",
        "login",
        "cp /run/slurm/conf/slurm.conf /etc/slurm",
        "rm /etc/slurm/slurm.conf",
        "login has a slurm.conf of its own",
    ),
    on_host(
        "login_hosts_reach",
        f"{NETWORK_OF}accounting",
        *dropped_from("login", 6819),
        "login: sacct fails",
    ),
    on_host(
        "runs_its_daemons",
        "login",
        "systemctl stop sackd",
        "systemctl start sackd",
        "login: runs none, should run sackd",
    ),
    Sabotage(
        ("submits_from_a_login_host", "output_of_a_job_is_in"),
        *(
            ("login", script)
            for script in wrapper("sbatch", '/usr/bin/sbatch "$@" --output=/dev/null')
        ),
        "the output of job",
    ),
    on_host(
        "home_is_the_same_file_system",
        f"{MOUNTS_OF}n1",
        "mount -t tmpfs none /home",
        "umount /home",
        "n1: /home is a separate tmpfs, without the files of accounting, ctl, login, n2",
    ),
    at_once(
        on_host(
            "homes_belong_to_their_users",
            "ctl",
            "chown bob /home/alice",
            "chown alice /home/alice",
            "n1: /home/alice belongs to bob, mode 700",
        ),
        on_host(
            "homes_belong_to_their_users",
            "ctl",
            "chmod 0755 /home/bob",
            "chmod 0700 /home/bob",
            "n1: alice reads /home/bob",
        ),
        on_host(
            "homes_belong_to_their_users",
            "ctl",
            "chmod 1777 /home",
            "chmod 0755 /home",
            "n1: /home belongs to root, mode 1777",
        ),
    ),
    on_host(
        "interactive_job_of_a_login_host",
        "login",
        *wrapper("srun", '/usr/bin/srun "$@" < /dev/null'),
        "prints",
    ),
    on_host(
        "accepted_on_every_other",
        "n1",
        "cp -p /etc/slurm/slurm.key /root && date | sha256sum > /etc/slurm/slurm.key &&"
        " systemctl restart slurmd",
        "cp -p /root/slurm.key /etc/slurm && systemctl restart slurmd",
        "refuses a credential of",
    ),
    on_host(
        "accepted_on_every_other",
        "n2",
        # usermod would also change the owner of her home, which all hosts share.
        "sed -i s/:2001:2001:/:3001:2001:/ /etc/passwd",
        "sed -i s/:3001:2001:/:2001:2001:/ /etc/passwd",
        "n2 issues alice a credential for uid 3001",
    ),
    on_host(
        "foreign_forged_or_expired",
        "n1",
        "mv /run/slurm/sack.socket /run/slurm/aside;"
        f" systemd-run --quiet --unit=credulous python3 -c '{CREDULOUS}';"
        " until [ -e /run/slurm/sack.socket ]; do sleep 0.1; done;"
        " chmod 0777 /run/slurm/sack.socket",
        "systemctl stop credulous; mv /run/slurm/aside /run/slurm/sack.socket",
        "n1 accepts a credential made with another key",
    ),
    on_host(
        "every_file",
        "login",
        "chmod 0640 /etc/slurm/slurm.key",
        "chmod 0600 /etc/slurm/slurm.key",
        "slurm.key is ('slurm', 'slurm', '0640')",
    ),
]

# Of virtual machines, where sessions and /home are more than in containers.
LOGIN_MACHINES = [
    on_host(
        ONLY_WITH_A_JOB,
        "n1",
        f"echo 'account required pam_exec.so /usr/local/sbin/leave' >> {PAM}; "
        "printf '#!/bin/sh\\necho $PPID > /sys/fs/cgroup/cgroup.procs\\n' > /usr/local/sbin/leave; "
        "chmod 0755 /usr/local/sbin/leave",
        f"sed -i '$d' {PAM}; rm /usr/local/sbin/leave",
        "n1: the session of bob is not in the cgroup of job",
    ),
    on_host(
        "same_file_system_on_all_hosts",
        "n1",
        "umount --lazy /home",
        "mount /home",
        "n1: /home is a separate ext2/ext3, without the files of ctl, login",
    ),
]
