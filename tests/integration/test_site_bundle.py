"""A site bundle of a live cluster becomes a rehearsal that behaves as the site does.

HARNESS_RICH_SITE="300 60 24.11" makes a site with so many users and accounts, on that release.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich_site import CLUSTER, rich_site, submissions

from harness.site import collect, importer
from harness.wait import wait_until
from support import Harness

# Each test takes minutes: one runs on the oldest release, one on the newest.
OLDEST, NEWEST = "20.11", "26.05"
FEDERATED_SITE = Path(__file__).parent / "federated_site.yml"
FEDERATED_SUBMISSIONS = [
    {
        "name": f"{user} on {cluster} {where}",
        "user": user,
        "cluster": cluster,
        "time": 10,
        **options,
    }
    for cluster in ("alpha", "beta")
    for user in ("alice", "bob", "carol")
    for where, options in (
        ("by default", {}),
        ("in physics", {"account": "physics"}),
        ("in chemistry", {"account": "chemistry"}),
        ("urgently", {"qos": "urgent", "ntasks": 2}),
        ("urgently and wide", {"qos": "urgent", "ntasks": 3}),
        ("for long", {"time": 100}),
        ("in the lab", {"partition": "lab"}),
        ("under a forbidden name", {"job-name": "forbidden"}),
        ("for another cluster", {"cluster-constraint": "fast"}),
    )
]
SITE_WITH_SCRIPTS = Path(__file__).parent / "site_with_scripts.yml"
CHECKS = ("accounting_tree", "every_user_is_the_same", "test_policy")
BROKEN_PROLOG = "echo checking the cards; echo card 3 is broken >&2; exit 7"

Succeed = Callable[..., str]


@pytest.fixture
def succeed(harness: Harness) -> Succeed:
    """Run a command of the harness that succeeds, and return what it prints."""

    def run(*arguments: str | Path) -> str:
        done = harness(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def removed(harness: Harness) -> Iterator[list[str]]:
    """Runs to remove at the end of the test, whether it passes or fails."""
    runs: list[str] = []
    yield runs
    for run in runs:
        harness("down", run)


def bundle_of(succeed: Succeed, run: str, host: str, directory: Path) -> tuple[Path, str]:
    """Collect a bundle on a host of a running site; return it, and what the script printed."""
    script, bundle = directory / "harness-collect", directory / "site.tar.gz"
    script.write_text(Path(collect.__file__).read_text())
    succeed("cp", "--run", run, script, f"{host}:/root/harness-collect")
    on_host = ("exec", "--run", run, host, "--")
    printed = succeed(
        *on_host, "python3", "/root/harness-collect", "--days=1", "--output=/root/site.tar.gz"
    )
    succeed("cp", "--run", run, f"{host}:/root/site.tar.gz", bundle)
    return bundle, printed


def test_rehearsal_of_a_bundle_behaves_as_the_site_does(
    harness: Harness, succeed: Succeed, removed: list[str], tmp_path: Path
) -> None:
    users, accounts, release = os.environ.get("HARNESS_RICH_SITE", f"24 12 {OLDEST}").split()
    site, copy = tmp_path / f"site-{release}.yml", tmp_path / f"copy-{release}.yml"
    table = tmp_path / "submissions.yml"
    site.write_text(importer.dump(rich_site(int(users), int(accounts))))
    table.write_text(json.dumps(submissions()))
    assert harness("collect").stdout == Path(collect.__file__).read_text()
    removed += [site.stem, copy.stem]
    succeed("up", site, "--release", release)
    succeed("deploy", "--run", site.stem)
    bundle, printed = bundle_of(succeed, site.stem, "ctl", tmp_path)
    assert "failed: s" not in printed, "a command of Slurm failed"
    before = Seen.of(harness, site.stem, "ctl", table)
    succeed("down", site.stem)
    succeed("import", bundle, "--rehearsal", "2", "--output", copy)
    assert f'release: "{release}"' in copy.read_text()
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)
    after = Seen.of(harness, copy.stem, "copy-ctl1", table)
    assert after.tree == before.tree
    assert len(after.answers) == len(submissions())
    assert {answer["outcome"] for answer in after.answers} == {"refused", "waits", "starts"}
    for old, new in zip(before.answers, after.answers, strict=True):
        assert new == old
    entries = json.loads(copy.with_suffix(".fidelity.json").read_text())
    assert [*contradicted(entries, before, after)] == []
    selected = (word for check in CHECKS for word in ("--select", check))
    succeed("verify", "--run", copy.stem, *selected)


@pytest.mark.exhaustive
def test_rehearsal_of_a_federation_behaves_as_the_site_does(
    harness: Harness, succeed: Succeed, removed: list[str], tmp_path: Path
) -> None:
    """Both clusters have accounts of their own, and a host of the database in common."""
    site, copy = tmp_path / "federated-site.yml", tmp_path / "federated-copy.yml"
    table = tmp_path / "submissions.yml"
    site.write_text(FEDERATED_SITE.read_text())
    table.write_text(json.dumps(FEDERATED_SUBMISSIONS))
    controllers = {"alpha": "a-ctl", "beta": "b-ctl"}
    removed += [site.stem, copy.stem]

    def seen(run: str, host: str) -> tuple[dict[str, str], list[dict[str, object]]]:
        """Return what sacctmgr shows of clusters and federation, and answers to submissions."""

        def on_host(*command: str) -> str:
            return succeed("exec", "--run", run, host, "--", *command)

        trees = {
            name: on_host("sh", "-c", f"sacctmgr -r dump {name} file=/root/dump && cat /root/dump")
            for name in controllers
        }
        federation = on_host(*["sacctmgr", "-nP", "show", "federation"])
        asked = harness("submissions", table, "--run", run, "--format", "json")
        assert asked.returncode == 0, asked.stdout + asked.stderr
        return {**trees, "federation": federation}, json.loads(asked.stdout)

    succeed("up", site)
    succeed("deploy", "--run", site.stem)
    bundles = []
    for name, host in controllers.items():
        (tmp_path / name).mkdir()
        bundles.append(bundle_of(succeed, site.stem, host, tmp_path / name)[0])
    before, answers = seen(site.stem, "a-ctl")
    succeed("down", site.stem)

    alone = tmp_path / "alone.yml"
    succeed("import", bundles[0], "--rehearsal", "1", "--no-start", "--output", alone)
    report = alone.with_suffix(".fidelity.md").read_text()
    left_out = report.partition("## Emulated")[0]
    assert "| federation | pair | beta,alpha | no bundle of beta; give one for" in left_out
    assert "federations:" not in alone.read_text()

    succeed("import", *bundles, "--rehearsal", "1", "--no-start", "--output", copy)
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)
    after, answers_of_copy = seen(copy.stem, "alpha-copy-ctl1")
    assert after == before
    assert "MaxSubmitJobs=3" in before["alpha"]
    assert "DefaultAccount='chemistry'" in before["beta"]
    assert {answer["outcome"] for answer in answers} == {"refused", "waits", "starts"}
    for old, new in zip(answers, answers_of_copy, strict=True):
        assert new == old
    entries = json.loads(copy.with_suffix(".fidelity.json").read_text())
    same = {(entry["where"], entry["name"]) for entry in entries if entry["state"] == "the same"}
    assert {("federation", "pair"), ("alpha account", "optics"), ("QOS", "urgent")} <= same
    assert not [entry for entry in entries if entry["state"] == "left out"]
    selected = ("--select", "accounting_tree", "--select", "federation_is_formed")
    succeed("verify", "--run", copy.stem, *selected)


@dataclass(frozen=True)
class Seen:
    """What a live cluster shows of itself: options, partitions, the tree, and its answers.

    `objects` are licenses, reservations without their times, and members of groups, by name.
    """

    options: Mapping[str, str]
    partitions: Mapping[str, str]
    objects: Mapping[str, str]
    tree: str
    answers: Sequence[Mapping[str, object]]

    @classmethod
    def of(cls, harness: Harness, run: str, host: str, table: Path) -> Seen:
        """Ask a run that is up."""

        def on_host(script: str) -> str:
            done = harness("exec", "--run", run, host, "--", "sh", "-c", script)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        config = on_host("scontrol show config")
        partitions = on_host("scontrol --all --oneliner show partition")
        reservations = on_host("scontrol --oneliner show reservation")
        licenses = on_host("sacctmgr -nP show resource withclusters format=name,server,count")
        groups = on_host("getent group")
        dump = f"sacctmgr --readonly dump {CLUSTER} file=/root/dump >&2 && cat /root/dump"
        asked = harness("submissions", table, "--run", run, "--format", "json")
        assert asked.returncode == 0, asked.stdout + asked.stderr
        return cls(
            {name.lower(): value for name, value in re.findall(r"(?m)^(\w+) *= (.*)$", config)},
            dict(re.findall(r"(?m)^PartitionName=(\S+) (.*)$", partitions)),
            {
                **{
                    f"reservation {line.split()[0].partition('=')[2]}": _without_times(line)
                    for line in reservations.splitlines()
                },
                **{f"license {line.partition('|')[0]}": line for line in licenses.splitlines()},
                **{f"group {line.partition(':')[0]}": line for line in groups.splitlines()},
            },
            on_host(dump),
            json.loads(asked.stdout),
        )


def _without_times(reservation: str) -> str:
    return re.sub(r"\b(StartTime|EndTime|Duration|State)=\S+ ?", "", reservation)


def contradicted(
    entries: Sequence[Mapping[str, str]], site: Seen, copy: Seen
) -> Iterator[tuple[str, str]]:
    """Yield what a fidelity report says that the live clusters show otherwise."""
    for entry in entries:
        where, name, state = (entry[key] for key in ("where", "name", "state"))
        kind, _, named = name.partition(" ")
        if where == "slurm.conf" and name.lower() in site.options:
            same = copy.options.get(name.lower()) == site.options[name.lower()]
        elif where == "slurm.conf" and kind == "PartitionName" and " " not in named:
            same = copy.partitions.get(named) == site.partitions[named]
        elif f"{where} {name}" in site.objects:
            same = copy.objects.get(f"{where} {name}") == site.objects[f"{where} {name}"]
            state = "the same" if where == "reservation" else state  # but for its times
        else:
            continue
        if same != (state == "the same"):
            yield f"{where} {name}", state


def test_rehearsal_of_a_bundle_runs_the_sites_scripts(
    harness: Harness,
    succeed: Succeed,
    runs: Path,
    removed: list[str],
    tmp_path: Path,
) -> None:
    site, copy = tmp_path / f"scripts-{NEWEST}.yml", tmp_path / f"scripts-copy-{NEWEST}.yml"
    site.write_text(SITE_WITH_SCRIPTS.read_text())
    removed += [site.stem, copy.stem]
    succeed("up", site, "--release", NEWEST)
    succeed("deploy", "--run", site.stem)
    bundle, _ = bundle_of(succeed, site.stem, "s1", tmp_path)
    succeed("down", site.stem)
    printed = succeed("import", bundle, "--rehearsal", "2", "--output", copy)
    for line in (
        "runs: JobSubmitPlugins=lua: /etc/slurm/job_submit.lua",
        "runs: CliFilterPlugins=lua: /etc/slurm/cli_filter.lua",
        "runs: Prolog=/etc/slurm/prolog.d/*: /etc/slurm/prolog.d/10-trace, ",
        "copied: /etc/slurm/site.sh: named in /etc/slurm/epilog.sh",
        "stand-in: /opt/site/bin/fabric-check: a program that only logs the call",
        "stand-in: /usr/local/bin/scontrol: the hosts' /usr/bin/scontrol",
    ):
        assert line in printed
    assert "/usr/bin/trace" not in printed, "a function of a script is not a program"
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)

    def as_alice(*command: str) -> tuple[str, str]:
        on_copy1 = ("exec", "--run", copy.stem, "copy1", "--", "runuser", "-u", "alice", "--")
        done = harness(*on_copy1, *command)
        return done.stdout, done.stderr

    def read(path: str) -> str:
        show = f"cat {path} 2> /dev/null; true"
        return "".join(
            succeed("exec", "--run", copy.stem, host, "--", "sh", "-c", show)
            for host in ("copy1", "copy2")
        )

    refused = as_alice("srun", "true")[1]
    assert "site policy: every job needs a time limit" in refused
    job = "echo $SLURM_JOB_ID $SITE_SCRATCH; scontrol show job $SLURM_JOB_ID"
    shown, _ = as_alice("srun", "--chdir=/tmp", "--time=90", "sh", "-c", job)
    number = shown.split()[0]
    assert shown.split()[1] == f"/scratch/{number}"
    assert "Partition=long" in shown
    assert "Comment=filtered" in shown
    assert f"prolog {number}" in read("/var/tmp/trace")
    assert f"JobId={number}" in read("/var/tmp/gpu-job")
    wait_until(
        lambda: read("/var/tmp/health"),
        lambda text: "healthy" in text,
        what="a health check",
        timeout=120,
    )
    journal = ("sh", "-c", "journalctl --sync; journalctl --identifier=slurm-stand-in")
    calls = succeed("exec", "--run", copy.stem, "copy1", "--", *journal)
    assert f"/usr/bin/gpu-check --job {number}" in calls

    refused_check = harness("verify", "--run", copy.stem, "--select", "batch_job")
    assert refused_check.returncode == 1
    assert "site policy: every job needs a time limit" in refused_check.stdout
    assert "hint: with JobSubmitPlugins=lua" in refused_check.stdout
    assert "checks: {submit: [--time=5]}" in refused_check.stdout

    succeed("down", copy.stem)
    copy.write_text(copy.read_text() + "checks: {submit: [--time=5]}\n")
    succeed("up", copy)
    succeed("deploy", "--run", copy.stem)
    succeed("verify", "--run", copy.stem)
    report = runs / copy.stem / "latest" / "report.html"
    assert "left out" in report.read_text().partition('id="fidelity"')[2]

    spoil_health = "printf '#!/bin/sh\\necho the fan is loud; exit 3\\n' > /opt/site/health.py"
    spoil = f"{spoil_health}; printf '#!/bin/sh\\n{BROKEN_PROLOG}\\n' > /etc/slurm/prolog.d/20-gpu"
    for host in ("copy1", "copy2"):
        succeed("exec", "--run", copy.stem, host, "--", "sh", "-c", spoil)
    look = ("exec", "--run", copy.stem, "copy1", "--", "grep", "-r", "health", "/var/log/slurm")
    wait_until(
        lambda: harness(*look).stdout,
        lambda lines: "error: " in lines,
        what="HealthCheckProgram to fail",
        timeout=120,
    )
    failed = harness("verify", "--run", copy.stem, "--select", "batch_job")
    assert failed.returncode == 1
    assert re.search(r"/opt/site/health.py \(\w+\) failed with exit code 3", failed.stdout)
    assert "the fan is loud" in failed.stdout
    assert "/etc/slurm/prolog.d/20-gpu" in failed.stdout
    assert "failed with exit code 7" in failed.stdout
    assert "card 3 is broken" in failed.stdout
