"""Sabotages of login.yml: of login hosts, of who can log in where, and of auth/slurm."""

from __future__ import annotations

from sabotage import MOUNTS_OF, NETWORK_OF, Sabotage, at_once, wrapper
from sabotage_hosts import dropped_from


def on(host: str, check: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage of a host of the scenario login.yml."""
    return Sabotage((check,), (host, do), (host, undo), message)


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
LOGIN = [
    on(
        "ctl",
        "log_in_to_login_hosts",
        "rm /etc/nologin",
        "echo 'Users log in to login.' > /etc/nologin",
        "alice can log in to ctl",
    ),
    on(
        "login",
        "log_in_to_login_hosts",
        "touch /etc/nologin",
        "rm /etc/nologin",
        "alice cannot log in to login",
    ),
    on(
        "login",
        "get_slurm_conf_from_slurmctld",
        "echo '# drift' >> /run/slurm/conf/slurm.conf",
        "systemctl restart sackd",
        "login: /run/slurm/conf/slurm.conf is not the controller's",
    ),
    on(
        "login",
        "get_slurm_conf_from_slurmctld",
        "cp /run/slurm/conf/slurm.conf /etc/slurm",
        "rm /etc/slurm/slurm.conf",
        "login has a slurm.conf of its own",
    ),
    on(
        f"{NETWORK_OF}accounting",
        "login_hosts_reach",
        *dropped_from("login", 6819),
        "login: sacct fails",
    ),
    on(
        "login",
        "runs_its_daemons",
        "systemctl stop sackd",
        "systemctl start sackd",
        "login: runs [], should run ['sackd']",
    ),
    Sabotage(
        ("submits_from_a_login_host", "output_of_a_job_is_in"),
        *(
            ("login", script)
            for script in wrapper("sbatch", '/usr/bin/sbatch "$@" --output=/dev/null')
        ),
        "the output of job",
    ),
    on(
        f"{MOUNTS_OF}n1",
        "home_is_the_same_file_system",
        "mount -t tmpfs none /home",
        "umount /home",
        "n1: /home is a separate tmpfs, without the files of accounting, ctl, login, n2",
    ),
    at_once(
        on(
            "ctl",
            "homes_belong_to_their_users",
            "chown bob /home/alice",
            "chown alice /home/alice",
            "n1: /home/alice belongs to bob, mode 700",
        ),
        on(
            "ctl",
            "homes_belong_to_their_users",
            "chmod 0755 /home/bob",
            "chmod 0700 /home/bob",
            "n1: alice reads /home/bob",
        ),
        on(
            "ctl",
            "homes_belong_to_their_users",
            "chmod 1777 /home",
            "chmod 0755 /home",
            "n1: /home belongs to root, mode 1777",
        ),
    ),
    on(
        "login",
        "interactive_job_of_a_login_host",
        *wrapper("srun", '/usr/bin/srun "$@" < /dev/null'),
        "prints",
    ),
    on(
        "n1",
        "accepted_on_every_other",
        "cp -p /etc/slurm/slurm.key /root && date | sha256sum > /etc/slurm/slurm.key &&"
        " systemctl restart slurmd",
        "cp -p /root/slurm.key /etc/slurm && systemctl restart slurmd",
        "refuses a credential of",
    ),
    on(
        "n2",
        "accepted_on_every_other",
        # usermod would also change the owner of her home, which all hosts share.
        "sed -i s/:2001:2001:/:3001:2001:/ /etc/passwd",
        "sed -i s/:3001:2001:/:2001:2001:/ /etc/passwd",
        "n2 signs for uid 3001 what alice asks for",
    ),
    on(
        "n1",
        "foreign_forged_or_expired",
        "mv /run/slurm/sack.socket /run/slurm/aside;"
        f" systemd-run --quiet --unit=credulous python3 -c '{CREDULOUS}';"
        " until [ -e /run/slurm/sack.socket ]; do sleep 0.1; done;"
        " chmod 0777 /run/slurm/sack.socket",
        "systemctl stop credulous; mv /run/slurm/aside /run/slurm/sack.socket",
        "n1 accepts a credential made with another key",
    ),
    on(
        "login",
        "every_file",
        "chmod 0640 /etc/slurm/slurm.key",
        "chmod 0600 /etc/slurm/slurm.key",
        "slurm.key is ('slurm', 'slurm', '0640')",
    ),
]
