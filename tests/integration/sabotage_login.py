"""Sabotages of login hosts: of their configuration, their commands, and who can log in where."""

from __future__ import annotations

from sabotage import Sabotage, wrapper


def on(host: str, check: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage of a host of the scenario login.yml."""
    return Sabotage((check,), (host, do), (host, undo), message)


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
        "login",
        "runs_its_daemons",
        "systemctl stop sackd",
        "systemctl start sackd",
        "login: runs ['munge'], should run ['munge', 'sackd']",
    ),
    on(
        "login",
        "submits_from_a_login_host",
        *wrapper("sbatch", '/usr/bin/sbatch "$@" --output=/dev/null'),
        "the output of job",
    ),
    on(
        "login",
        "interactive_job_of_a_login_host",
        *wrapper("srun", '/usr/bin/srun "$@" < /dev/null'),
        "prints",
    ),
]
