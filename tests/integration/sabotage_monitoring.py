"""Sabotages of monitoring.yml: of Prometheus, of its targets, and of who may read metrics."""

from __future__ import annotations

from sabotage import CONF, UP, Sabotage, at_once, drop_in, wrapper
from sabotage_configuration import RECONFIGURE, held_back
from sabotage_hosts import on_host

FILE = "/etc/prometheus/prometheus.yml"
TOKEN = "/etc/prometheus/slurm.token"
LISTENS = "until ss -Hltn sport = :9090 | grep -q .; do sleep 0.1; done"
RESTART = f"systemctl restart prometheus; {LISTENS}"
# It reads its configuration only after what it has stored.
READY = (
    "until python3 -c 'import urllib.request as u; u.urlopen(\"http://db:9090/-/ready\")'"
    " 2> /dev/null; do sleep 0.1; done"
)
SCRAPES, OPEN = "scrapes_every_target", "open_only_to_those_whom_private_data_permits"
FIGURES = "figures_agree"
SEPARATE = "jobs_of_separate_clusters"


def configured(check: str, edit: str, message: str) -> Sabotage:
    """Return a sabotage that edits prometheus.yml with sed."""
    return on_host(
        check,
        "db",
        f"sed -i.right '{edit}' {FILE}; {RESTART}",
        f"mv {FILE}.right {FILE}; {RESTART}",
        message,
    )


def located(cluster: str, address: str) -> str:
    """Return a script that changes where the database says that a cluster's slurmctld is."""
    where = f"set control_host='{address}' where name='{cluster}'"
    return f'mariadb -e "update slurm_acct_db.cluster_table {where}"'


def without(option: str) -> str:
    """Return a script that makes slurmctld read slurm.conf without an option."""
    return (
        f"cp -p {CONF} /root/right.conf; sed -i /^{option}=/d {CONF}; {RECONFIGURE};"
        f" cat /root/right.conf > {CONF}"
    )


MONITORING = [
    on_host(
        SCRAPES,
        "db",
        "systemctl stop prometheus",
        f"systemctl start prometheus; {LISTENS}",
        "Prometheus to answer at db:9090 cannot succeed any more",
    ),
    configured(
        SCRAPES,
        "s/ctl-a:6817/ctl-a:6818/",
        "Prometheus does not scrape http://ctl-a:6817/metrics/jobs",
    ),
    on_host(
        SCRAPES,
        "db",
        f"sed -i.right 's/^scrape_configs:/  scrape_timeout: 1s\\n&/' {FILE}; {RESTART}; {READY};"
        " sleep 2;"
        f" mv {FILE}.right {FILE}",
        RESTART,
        f"Prometheus read {FILE} ",
    ),
    at_once(
        on_host(
            SCRAPES,
            "ctl-b",
            "systemctl stop slurmctld",
            f"systemctl start slurmctld; {UP}",
            'http://ctl-b:6817/metrics/nodes is down: Get "http://ctl-b:6817/metrics/nodes":'
            " dial tcp",
        ),
        on_host(
            SCRAPES,
            "db",
            "systemctl stop prometheus-node-exporter",
            "systemctl start prometheus-node-exporter;"
            " until ss -Hltn sport = :9100 | grep -q .; do sleep 0.1; done",
            "http://db:9100/metrics is down",
        ),
    ),
    on_host(
        SCRAPES,
        "db",
        f"cp -p {TOKEN} /root/right.token; echo no > {TOKEN}; {RESTART}",
        f"cat /root/right.token > {TOKEN}; {RESTART}",
        "http://ctl-b:6817/metrics/jobs is down: server returned HTTP status 401 UNAUTHORIZED",
    ),
    on_host(
        "listens_at_its_hosts_own_address",
        "db",
        *(
            f"{script}; {LISTENS}"
            for script in drop_in(
                "prometheus",
                "ExecStart=\nExecStart=/usr/bin/prometheus --web.listen-address=0.0.0.0:9090",
            )
        ),
        "Prometheus on db listens at *:9090",
    ),
    at_once(
        on_host(
            OPEN,
            "ctl-a",
            *held_back("PrivateData=jobs"),
            "open: /metrics/jobs without a token: 401, should be 200",
        ),
        on_host(
            OPEN,
            "ctl-b",
            without("PrivateData"),
            RECONFIGURE,
            "private: /metrics/jobs without a token: 200, should be 401",
        ),
    ),
    on_host(
        OPEN,
        "ctl-b",
        without("SlurmctldHttpAuthParameters"),
        RECONFIGURE,
        "private: /metrics/jobs with root's token: 401, should be 200",
    ),
    on_host(
        OPEN,
        "ctl-b",
        *held_back("MetricsAuthUsers=alice"),
        "private: /metrics/jobs with alice's token: 200, should be 403",
    ),
    # slurmctld answers requests, but with nothing.
    Sabotage(
        (FIGURES, OPEN),
        ("ctl-a", without("MetricsType")),
        ("ctl-a", RECONFIGURE),
        "MetricsType=(null)",
    ),
    on_host(
        FIGURES,
        "ctl-a",
        *wrapper("sinfo", '/usr/bin/sinfo "$@" | sed s,/8$,/9,'),
        "slurm_partition_cpus{main} is 8.0, should be 9",
    ),
    configured(
        FIGURES,
        "/job_name: slurm:open/a\\    metric_relabel_configs:"
        " [{source_labels: [__name__], regex: slurm_user_.*, action: drop}]",
        "slurm_user_jobs_running{alice} is missing, should be 1",
    ),
    on_host(
        SEPARATE,
        "db",
        located("private", "127.0.0.1"),
        located("private", "$(getent hosts ctl-b | cut -d' ' -f1)"),
        "--clusters=private reaches a[1-2]: the database says that it is at 127.0.0.1:6817",
    ),
    on_host(
        SEPARATE,
        "ctl-b",
        *wrapper("squeue", 'case "$*" in *--clusters=*) ;; *) exec /usr/bin/squeue "$@" ;; esac'),
        "open, as seen from private",
    ),
    on_host(
        "registered_with_its_controller",
        "ctl-a",
        "sacctmgr -i add federation europe clusters=open",
        "sacctmgr -i delete federation europe",
        "the federations in the database are not the scenario's",
    ),
]
