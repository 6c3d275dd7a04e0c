"""Prometheus scrapes its targets, and has the figures that Slurm's commands print."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest
from conftest import Jobs, address_of, everywhere, listening, small

from harness import releases, run_secrets, slurm_options
from harness.cluster import node_state
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.rundir import RunDir
from harness.slurmconf import drift
from harness.ssh import Ssh
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = pytest.mark.needs("monitoring")

FILE = "/etc/prometheus/prometheus.yml"
# Seconds in which Prometheus scrapes a target, in addition to its interval, on a busy machine.
SCRAPES_WITHIN = 120
# How the error of a scrape that took longer than the interval ends.
TIMED_OUT = "context deadline exceeded"
# Reads pairs of a URL and a token or null, and prints the status and body of each answer. Status 0
# means that there was no answer.
FETCH = """
import json, sys, urllib.error, urllib.request
answers = []
for url, token in json.load(sys.stdin):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            answers.append((answer.status, answer.read().decode()))
    except urllib.error.HTTPError as error:
        answers.append((error.code, error.read().decode()))
    except OSError as error:
        answers.append((0, str(getattr(error, "reason", error))))
print(json.dumps(answers))
"""
# A job's state, as squeue prints it -> how the names of its metrics end: openmetrics.c.
STATES = {
    "BOOT_FAIL": "bootfail",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "DEADLINE": "deadline",
    "FAILED": "failed",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "outofmemory",
    "PENDING": "pending",
    "PREEMPTED": "preempted",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "TIMEOUT": "timeout",
}
# The same for nodes. FUTURE nodes, which commands do not show, are left out.
NODE_STATES = {
    "ALLOCATED": "alloc",
    "DOWN": "down",
    "IDLE": "idle",
    "MIXED": "mixed",
    "UNKNOWN": "unknown",
}
HAS_JOBS = {"ALLOCATED", "MIXED", "COMPLETING"}
# What sdiag counts.
COUNTED = ("submitted", "started", "completed", "canceled", "failed")
# A metric and the value of its label ("" for none) -> its value.
Figures = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus, which is asked on its host."""

    ssh: Ssh
    host: str
    port: int
    interval: int

    def fetch(self, *requests: tuple[str, str | None]) -> list[tuple[int, str]]:
        """Send requests from its host, each a URL with or without a token.

        Return the status and body of each answer; without an answer, 0 and why there is none.
        """
        command = ["python3", "-c", FETCH]
        answer = self.ssh.run(self.host, command, stdin=json.dumps(requests)).stdout
        return [(status, body) for status, body in json.loads(answer)]

    def ask(self, path: str) -> Any:
        """Return the data of an answer to a request."""
        place = f"{self.host}:{self.port}"
        ((_, body),) = wait_until(
            lambda: self.fetch((f"http://{place}/api/v1/{path}", None)),
            lambda answers: answers[0][0] == 200,
            what=f"Prometheus to answer at {place}",
            timeout=SCRAPES_WITHIN,
            # It answers 503 while it reads what it has stored.
            give_up=lambda answers: answers[0][0] not in {0, 503} or "refused" in answers[0][1],
            show=lambda answers: " ".join(map(str, answers[0])),
        )
        return json.loads(body)["data"]

    def targets(self, wanted: set[str]) -> list[str]:
        """Return what is wrong with its targets, once it has scraped each of them again.

        It takes some seconds to find its targets after a start. A scrape may take no longer than
        the interval, so that one can time out on a busy machine; the next one counts then.
        """
        began = float(self.ask("query?query=time()")["result"][0])
        scraped: dict[str, dict[str, Any]] = {}

        def look() -> dict[str, dict[str, Any]]:
            active = self.ask("targets?state=active")["activeTargets"]
            targets = {target["scrapeUrl"]: target for target in active}
            scraped.update(
                (url, target)
                for url, target in targets.items()
                if seconds(target["lastScrape"]) > began
                and not target["lastError"].endswith(TIMED_OUT)
            )
            return targets

        wait_until(
            look,
            lambda targets: {*wanted, *targets} <= scraped.keys(),
            what=f"Prometheus on {self.host} to scrape its targets",
            timeout=self.interval + SCRAPES_WITHIN,
            show=lambda targets: "; ".join(wrong_targets(wanted, targets)) or "not all scraped yet",
        )
        return wrong_targets(wanted, scraped)

    def figures(self, cluster: str) -> Figures:
        """Return its latest figures of a cluster, without those that it no longer receives."""
        query = f'{{cluster="{cluster}",__name__=~"slurm_.*"}}[{2 * self.interval + 3}s]'
        return {
            (series["metric"]["__name__"], label(series["metric"])): float(series["values"][-1][1])
            for series in self.ask(f"query?query={quote(query)}")["result"]
        }


def wrong_targets(wanted: set[str], seen: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which targets Prometheus lacks, has in addition, or cannot scrape."""
    return [
        *(f"Prometheus does not scrape {url}" for url in sorted(wanted - seen.keys())),
        *(
            f"Prometheus scrapes {url}, which is not a target of the scenario"
            for url in sorted(seen.keys() - wanted)
        ),
        *(
            f"{url} is {target['health']}: {target['lastError']}"
            for url, target in sorted(seen.items())
            if target["health"] == "down"
        ),
    ]


def seconds(time: str) -> float:
    """Return a time of Prometheus in seconds since 1970."""
    return datetime.fromisoformat(time).timestamp()


def label(metric: Mapping[str, str]) -> str:
    """Return the value of the label that Slurm gives a metric, "" for none."""
    of_slurm = ("node", "partition", "username", "account")
    return next((metric[name] for name in of_slurm if name in metric), "")


@pytest.fixture(scope="session")
def prometheus(plan: Plan, ssh: Ssh) -> Prometheus:
    """The Prometheus of the scenario."""
    monitoring = plan.scenario.monitoring
    return Prometheus(ssh, monitoring.host, monitoring.port, monitoring.scrape_interval)


@pytest.fixture(scope="session")
def with_metrics(plan: Plan) -> dict[str, releases.Readers]:
    """The clusters whose slurmctld has metrics, and who may read them."""
    readers = {name: plan.metric_readers(name) for name in plan.scenario.clusters}
    if not any(readers.values()):
        option = slurm_options.METRICS
        able = [
            name
            for name in releases.packaged()
            if option.lower() in releases.get(name).options["slurm.conf"]
        ]
        pytest.skip(
            f"no slurm.conf has {option}: slurmctld serves metrics from "
            f"{releases.since('slurm.conf', option)} on (Debian's packages of {', '.join(able)} "
            f"do), the clusters have {', '.join(sorted({*plan.releases().values()}))}"
        )
    return {name: who for name, who in readers.items() if who}


def test_prometheus_scrapes_every_target(plan: Plan, ssh: Ssh, prometheus: Prometheus) -> None:
    """Those are every slurmctld with metrics, and the targets that the scenario adds."""
    wanted = {
        f"http://{target}{path}"
        for target in plan.metric_targets().values()
        for path in slurm_options.METRIC_PATHS
    } | {
        f"http://{target}/metrics"
        for targets in plan.scenario.monitoring.targets.values()
        for target in targets
    }
    wrong = prometheus.targets(wanted)
    changed = int(ssh.run(prometheus.host, ["stat", "--format=%Z", FILE]).stdout)
    loaded = seconds(prometheus.ask("status/runtimeinfo")["lastConfigTime"])
    if loaded < changed:
        wrong.append(
            f"Prometheus read {FILE} {changed - loaded:.0f} s before the file last changed"
        )
    assert not wrong, "\n".join(wrong)


def test_prometheus_listens_at_its_hosts_own_address_only(
    plan: Plan, ssh: Ssh, prometheus: Prometheus
) -> None:
    own = address_of(ssh, prometheus.host)
    addresses = listening(ssh, prometheus.host, prometheus.port)
    assert addresses == {f"{own}:{prometheus.port}"}, (
        f"Prometheus on {prometheus.host} listens at {', '.join(sorted(addresses)) or 'no address'}"
    )


@pytest.mark.provokes("cred_verify: jwt_decode failure")
def test_metrics_are_open_only_to_those_whom_private_data_permits(
    plan: Plan,
    run: RunDir,
    ssh: Ssh,
    clusters: dict[str, SlurmCluster],
    prometheus: Prometheus,
    with_metrics: dict[str, releases.Readers],
    users: list[str],
) -> None:
    """PrivateData keeps everybody out but root and SlurmUser, who need a token.

    `MetricsParameters=ignore_private_data` lets everybody in, MetricsAuthUsers some users.
    """
    key = run.secrets().get(run_secrets.JWT_KEY) or secrets.token_hex(32)
    foreign = secrets.token_hex(32)
    wrong = []
    for name, readers in with_metrics.items():
        conf = plan.slurm_conf(name)
        cases = {"without a token": (None, 200 if readers == "anyone" else 401)}
        if readers == "token":
            named = (slurm_options.get(conf, "MetricsAuthUsers") or "").split(",")
            cases |= {
                f"with {user}'s token": (run_secrets.token(user, key, 600), status)
                for user, status in [
                    ("root", 200),
                    *((user, 200 if user in named else 403) for user in users[:1]),
                ]
            }
            cases["with a foreign key's token"] = (run_secrets.token("root", foreign, 600), 401)
        requests = [(path, client) for path in slurm_options.METRIC_PATHS for client in cases]
        url = f"http://{slurm_options.conf_servers(plan.scenario.clusters[name], conf)[0]}"
        answers = prometheus.fetch(
            *((f"{url}{path}", cases[client][0]) for path, client in requests)
        )
        for (path, client), (status, body) in zip(requests, answers, strict=True):
            wanted = cases[client][1]
            if status != wanted:
                wrong.append(f"{name}: {path} {client}: {status}, should be {wanted}: {body[:200]}")
            elif status == 200 and "slurm_" not in body and path != slurm_options.METRIC_PATHS[-1]:
                wrong.append(f"{name}: {path} {client}: no metrics")  # only those of users may lack
    options_of = everywhere(lambda name: in_memory(clusters[name]), with_metrics) if wrong else {}
    assert not wrong, "\n".join(
        [*wrong, *(f"{name}: slurmctld has {facts}" for name, facts in options_of.items())]
    )


def in_memory(cluster: SlurmCluster) -> str:
    """Return the options that slurmctld has read that say who may read metrics."""
    answer = cluster.run("scontrol", "show", "config").stdout
    wanted = r"^((?:Metrics\w+|PrivateData|SlurmctldHttpAuthParameters)\s*=.*)$"
    return ", ".join(
        re.sub(r"\s*=\s*", "=", line.strip()) for line in re.findall(wanted, answer, re.M)
    )


@pytest.mark.needs("figures")
def test_figures_agree_with_squeue_sinfo_and_sdiag(
    plan: Plan,
    clusters: dict[str, SlurmCluster],
    jobs: Jobs,
    prometheus: Prometheus,
    with_metrics: dict[str, releases.Readers],
) -> None:
    """While one job runs and one is held, and after one was cancelled and one has completed."""
    names = [name for name, readers in with_metrics.items() if readers != "nobody"]
    if not names:
        pytest.skip("PrivateData hides the metrics of every cluster, and no token helps")

    def compare(name: str) -> None:
        cluster = clusters[name]
        options = small(plan, name, 5)
        running = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED, *options)
        held = jobs.submit_here(cluster, "true", "--hold", *options)
        jobs.wait_until_begun(cluster, [running])
        agree(cluster, prometheus, f"job {running} runs and job {held} is held")
        cluster.run("scancel", str(running))
        cluster.run("scontrol", "release", str(held))
        cluster.wait_for([running], {"CANCELLED"})
        cluster.wait_for([held], {"COMPLETED"})
        agree(cluster, prometheus, f"job {running} is cancelled and job {held} has completed")

    everywhere(compare, names)


def agree(cluster: SlurmCluster, prometheus: Prometheus, when: str) -> None:
    """Wait until Prometheus has the figures that Slurm's commands print."""

    def different() -> list[str]:
        expected, scraped = dict(figures(cluster)), prometheus.figures(cluster.name)
        return [
            f"{metric}{{{label_value}}} is {scraped.get((metric, label_value), 'missing')}, "
            f"should be {value:g}"
            for (metric, label_value), value in expected.items()
            if scraped.get((metric, label_value)) != value
        ]

    wait_until(
        different,
        lambda differences: not differences,
        what=f"Prometheus to have the figures of {cluster.name} while {when}",
        timeout=prometheus.interval + SCRAPES_WITHIN,
        show=lambda differences: f"{'; '.join(differences)} (slurmctld: {in_memory(cluster)})",
    )


def figures(cluster: SlurmCluster) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what Slurm's commands print, by metric and label."""
    yield from figures_of_jobs(cluster)
    nodes = cluster.run("scontrol", "--all", "--oneliner", "show", "node").stdout
    yield from figures_of_nodes(nodes)
    # Allocated, idle, other and all CPUs.
    answer = cluster.run("sinfo", "--all", "--noheader", "--format=%R|%D|%C").stdout
    sums: Counter[tuple[str, str]] = Counter()
    for line in answer.splitlines():
        partition, count, cpus = line.split("|")
        sums["slurm_partition_nodes", partition] += int(count)
        sums["slurm_partition_cpus", partition] += int(cpus.split("/")[3])
        sums["slurm_partition_nodes_cpus_alloc", partition] += int(cpus.split("/")[0])
    yield from sums.items()
    statistics = cluster.run("sdiag").stdout
    for word in COUNTED:
        count = re.search(rf"^Jobs {word}:\s*(\d+)", statistics, re.M)
        yield (f"slurm_sdiag_jobs_{word}", ""), int(count[1]) if count else -1


def figures_of_jobs(cluster: SlurmCluster) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what squeue prints about the jobs in slurmctld's memory; an array task is a job."""
    query = ("squeue", "--noheader", "--all", "--array", "--states=all", "--format=%T|%u|%a|%P|%C")
    rows = [line.split("|") for line in cluster.run(*query).stdout.splitlines()]
    yield ("slurm_jobs", ""), len(rows)
    allocated = sum(int(row[4]) for row in rows if row[0] in {"RUNNING", "SUSPENDED"})
    yield ("slurm_jobs_cpus_alloc", ""), allocated
    for state, end in STATES.items():
        of_state = [row for row in rows if row[0] == state]
        yield (f"slurm_jobs_{end}", ""), len(of_state)
        for column, what in ((1, "user"), (2, "account")):
            count = Counter(row[column] for row in of_state)
            for name in {row[column] for row in rows} - {"", "(null)"}:
                yield (f"slurm_{what}_jobs_{end}", name), count[name]
    for partition, count in Counter(row[3] for row in rows if row[0] == "RUNNING").items():
        yield ("slurm_partition_jobs_running", partition), count


def figures_of_nodes(printed: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what `scontrol show node` prints of nodes."""
    states = []
    for node, facts in drift.printed_lines(printed).items():
        states.append(node_state.words(facts["state"]))
        yield ("slurm_node_cpus", node), int(facts["cputot"])
        yield ("slurm_node_cpus_alloc", node), int(facts["cpualloc"])
    for state, end in NODE_STATES.items():
        yield (f"slurm_nodes_{end}", ""), sum(state in words for words in states)
    draining = [words for words in states if "DRAIN" in words]
    yield ("slurm_nodes_draining", ""), sum(bool(HAS_JOBS & words) for words in draining)
    yield ("slurm_nodes_drained", ""), sum(not HAS_JOBS & words for words in draining)
