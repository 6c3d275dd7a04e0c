"""Copy the suite to a run's hosts, run its tests there one by one, and keep their results."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import transfer
from harness.errors import UsageError
from harness.open_run import OpenRun
from harness.schedmd import results
from harness.schedmd.results import Expected, Outcome, SuiteTest, UnexpectedOutcome
from harness.ssh import Result

# Programs that the tests need, and the package of each.
_PROGRAMS = {"expect": "expect", "pytest-3": "python3-pytest", "gcc": "gcc", "make": "make"}
_PYTEST_OPTIONS = ("-p", "no:cacheprovider", "--color=no")
# Options of the suite's own conftest.py. Tests may change the accounting database, because it is
# the run's.
_CONFTEST_OPTIONS = ("--no-color", "--allow-slurmdbd-modify")
# The directory for temporary files, which is shared because jobs on other hosts read some of them.
_SCRATCH = "tmp"
_CLEAN = """
for name in $(
    scontrol --oneliner show reservation | sed -n 's/^ReservationName=\\([^ ]*\\).*/\\1/p'
); do
    scontrol delete reservation="$name"
done
for node in $(sinfo --noheader --Node --states=down,drain --format=%N | sort -u); do
    scontrol update nodename="$node" state=resume
done
"""
# Deadlines in seconds: for a test to end once it is stopped, and for other commands.
_KILL_AFTER = 10
_PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite on the hosts of a run.

    `user` runs the tests and owns `directory`, which all hosts share. A test is stopped after
    `most_seconds`; `options` are those of pytest.
    """

    run: OpenRun
    user: str
    directory: str
    most_seconds: float
    options: Sequence[str]

    def run_test(self, test: SuiteTest) -> tuple[list[Outcome], str]:
        """Run a test; return its outcomes and its output."""
        began = time.monotonic()
        part = "python" if test.python else "expect"
        junit = f"{self.directory}/junit.xml"
        command = (
            f"pytest-3 {' '.join(self.options)} --junitxml={junit} tests/{test.name}.py"
            if test.python
            else f"expect {test.name}"
        )
        limit = f"timeout --kill-after={_KILL_AFTER} {self.most_seconds:.0f}"
        script = (
            f"cd {self.directory}/testsuite/{part} && rm -f {junit} && "
            f"TMPDIR={self.directory}/{_SCRATCH} "
            f"SLURM_TESTSUITE_CONF={self.directory}/testsuite.conf "
            f"SLURM_LOCAL_GLOBALS_FILE={self.directory}/globals.local {limit} {command} 2>&1"
        )
        host = self._host_of(test)
        done = self._as_user(host, script, self.most_seconds + _PATIENCE)
        seconds = time.monotonic() - began
        if done.exit_code in {124, 137}:  # timeout(1) stopped it
            self.clean()
            return [results.timed_out(test, self.most_seconds)], done.stdout
        if not test.python:
            return [results.of_expect(test, done.exit_code, done.stdout, seconds)], done.stdout
        written = self._as_user(host, f"cat {junit}", _PATIENCE).stdout
        return results.of_pytest(test, done.exit_code, done.stdout, written, seconds), done.stdout

    def clean(self) -> None:
        """Clean up after a stopped test: cancel jobs, delete reservations, resume nodes.

        Existing machines keep their reservations and the states of their nodes.
        """
        for cluster in self.run.plan.scenario.clusters.values():
            script = f"scancel --user={self.user}; "
            script += _CLEAN if self.run.provider.capabilities.engine else ""
            self.run.ssh.run(
                cluster.controller, ["sh", "-c", script], check=False, timeout=_PATIENCE
            )

    def delete_leftovers(self) -> None:
        """Delete the federations and clusters in accounting that are not the scenario's.

        Without auto-config mode, tests leave them behind, and other tests then fail to create them.
        """
        scenario = self.run.plan.scenario
        for kind, known in (("federation", scenario.federations), ("cluster", scenario.clusters)):
            shown = self._sacctmgr(
                "--noheader", "--parsable2", "show", kind, f"format={kind}"
            ).stdout
            if leftovers := {*shown.split()} - {*known}:
                self._sacctmgr("--immediate", "delete", kind, ",".join(sorted(leftovers)))

    def restore_federations(self) -> None:
        """Return the clusters to the scenario's federations, because tests move them to others."""
        for name, federation in self.run.plan.scenario.federations.items():
            members = f"clusters={','.join(federation.clusters)}"
            done = self._sacctmgr("--immediate", "modify", "federation", name, "set", members)
            # sacctmgr also fails if there is nothing to change.
            if done.exit_code and "Nothing modified" not in done.stdout + done.stderr:
                self.run.say(
                    f"cannot restore federation {name}: {done.stdout}{done.stderr}".strip()
                )

    def _sacctmgr(self, *words: str) -> Result:
        client = self.run.plan.with_daemon("slurmctld")[0].name
        return self.run.ssh.run(client, ["sacctmgr", *words], check=False, timeout=_PATIENCE)

    def _as_user(self, host: str, script: str, seconds: float) -> Result:
        user = None if self.user == "root" else self.user
        return self.run.ssh.run(host, ["sh", "-c", script], user=user, check=False, timeout=seconds)

    def _host_of(self, test: SuiteTest) -> str:
        """Return the host to run a test on: the federation's if the test needs one."""
        members = _three_of_a_federation(self.run)
        clusters = self.run.plan.scenario.clusters
        return clusters[
            members[0] if test.federated and members else next(iter(clusters))
        ].controller


def put(run: OpenRun, source: Path, user: str, most_seconds: float) -> Suite:
    """Copy the suite of a source tree to the hosts of a run.

    Raises UsageError if they lack programs that it needs.
    """
    scenario = run.plan.scenario
    if user not in {"root", *scenario.users}:
        raise UsageError(
            f"no user {user} in {run.directory.id}",
            hint=f"users: {', '.join(['root', *scenario.users])}",
        )
    directory = f"{next(iter(scenario.shared_directories), '/home')}/schedmd-suite-{user}"
    conftest = source / "testsuite" / "python" / "conftest.py"
    conftest_text = conftest.read_text() if conftest.exists() else ""
    options = [
        *_PYTEST_OPTIONS,
        *(option for option in _CONFTEST_OPTIONS if option in conftest_text),
    ]
    suite = Suite(run, user, directory, most_seconds, options)
    members = _three_of_a_federation(run)
    client = next(iter(scenario.clusters.values())).controller
    for host in {client, *(scenario.clusters[name].controller for name in members[:1])}:
        _require_programs(run, host)
    run.ssh.run(
        client,
        ["sh", "-c", f"rm -rf {directory} && mkdir -m 0755 {directory} {directory}/{_SCRATCH}"],
    )
    transfer.put(run.ssh, client, source / "testsuite", f"{directory}/testsuite")
    _write_settings(run, client, directory, members)
    if conftest_text:
        # update_tmp_path_exec_permissions() opens pytest's directories to other users, but only
        # below /tmp.
        moved = f"s,/tmp/pytest-of-,{directory}/{_SCRATCH}/pytest-of-,"
        run.ssh.run(client, ["sed", "-i", moved, f"{directory}/testsuite/python/conftest.py"])
    if run.provider.capabilities.engine and user != "root":
        for host_ in run.plan.hosts:
            _give_sudo(run, host_.name, user)
    run.ssh.run(client, ["chown", "-R", f"{user}:", directory], timeout=_PATIENCE)
    return suite


def _write_settings(run: OpenRun, client: str, directory: str, members: Sequence[str]) -> None:
    """Write the suite's settings, and wrappers of Slurm's commands for each federation member."""
    files = {
        "testsuite.conf": _testsuite_conf(directory),
        "globals.local": _globals(directory, members),
    }
    for name in members:
        controller = run.plan.scenario.clusters[name].controller
        files[f"fed/{name}/slurm.conf"] = run.ssh.run(
            controller, ["cat", "/etc/slurm/slurm.conf"]
        ).stdout
    for path, text in files.items():
        run.ssh.run(
            client, ["install", "-D", "-m", "0644", "/dev/stdin", f"{directory}/{path}"], stdin=text
        )
    for name in members:
        run.ssh.run(client, ["sh", "-c", _wrappers(f"{directory}/fed/{name}")])


def run(suite: Suite, tests: Sequence[SuiteTest], expected: Expected) -> list[Outcome]:
    """Run tests; keep results, and the output of tests that did not pass, in RUN/schedmd-suite."""
    run = suite.run
    kept = run.directory.path / "schedmd-suite"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    outcomes: list[Outcome] = []
    suite.clean()
    try:
        for number, test in enumerate(tests, 1):
            reported, output = suite.run_test(test)
            if run.plan.scenario.accounting:
                suite.delete_leftovers()
            outcomes += reported
            counted = ", ".join(
                f"{count} {status}" for status, count in results.counts(reported).items() if count
            )
            unexpected = _shown(results.unexpected_outcomes(reported, expected))
            run.say(f"{number} of {len(tests)}: {test.name}: {counted}{unexpected}")
            if any(outcome.status != results.PASSED for outcome in reported):
                (kept / f"{test.name}.log").write_text(output)
            write_report(kept / "report.json", suite, outcomes, expected)
    finally:
        if any(test.federated for test in tests):
            suite.restore_federations()
    return outcomes


def write_report(path: Path, suite: Suite, outcomes: Sequence[Outcome], expected: Expected) -> None:
    """Write the outcomes so far, and which of them are unexpected."""
    path.write_text(json.dumps(report(suite, outcomes, expected), indent=2) + "\n")


def report(suite: Suite, outcomes: Sequence[Outcome], expected: Expected) -> dict[str, object]:
    """Return the results for JSON."""
    return {
        "run": str(suite.run.directory.path),
        "user": suite.user,
        "counts": results.counts(outcomes),
        "unexpected": [asdict(one) for one in results.unexpected_outcomes(outcomes, expected)],
        "tests": [asdict(outcome) for outcome in outcomes],
    }


def _shown(unexpected: Sequence[UnexpectedOutcome]) -> str:
    return f", {len(unexpected)} not as expected" if unexpected else ""


def _require_programs(run: OpenRun, host: str) -> None:
    programs = " ".join(_PROGRAMS)
    script = f"for program in {programs}; do command -v $program > /dev/null || echo $program; done"
    if lacking := run.ssh.run(host, ["sh", "-c", script]).stdout.split():
        packages = ", ".join(_PROGRAMS[program] for program in lacking)
        raise UsageError(
            f"{host} lacks {', '.join(lacking)}, which Slurm's tests need",
            hint=(
                f"`packages: [{packages}]` of the cluster installs them, "
                "as in scenarios/schedmd-suite.yml"
            ),
        )


def _give_sudo(run: OpenRun, host: str, user: str) -> None:
    """Give a user full sudo rights, if the host has sudo: many tests are skipped without it."""
    script = "[ ! -d /etc/sudoers.d ] || cat > /etc/sudoers.d/schedmd-suite"
    run.ssh.run(host, ["sh", "-c", script], stdin=f"{user} ALL=(ALL:ALL) NOPASSWD: ALL\n")


def _three_of_a_federation(run: OpenRun) -> tuple[str, ...]:
    """Return three members of a federation, as many as some tests need.

    () if no federation has three.
    """
    members = (federation.clusters for federation in run.plan.scenario.federations.values())
    return next((clusters[:3] for clusters in members if len(clusters) >= 3), ())


def _testsuite_conf(directory: str) -> str:
    return (
        f"SlurmSourceDir={directory}\nSlurmBuildDir={directory}\n"
        "SlurmInstallDir=/usr\nSlurmConfigDir=/etc/slurm\n"
    )


def _globals(directory: str, members: Sequence[str]) -> str:
    """Return the text of globals.local, which the suite's expect/README describes."""
    lines = ["set testsuite_colorize 0"]
    if members:
        lines.append(f"set fed_slurm_base {directory}/fed")
        lines += [f"set fedc{number} {name}" for number, name in enumerate(members, 1)]
    return "".join(f"{line}\n" for line in lines)


def _wrappers(directory: str) -> str:
    """Return a script that creates wrappers of Slurm's commands in DIRECTORY/bin.

    They use DIRECTORY/slurm.conf.
    """
    wrapper = shlex.quote(f'#!/bin/sh\nSLURM_CONF={directory}/slurm.conf exec "${{0##*/}}" "$@"\n')
    return (
        f"mkdir -p {directory}/bin && cd {directory}/bin && for path in /usr/bin/s*; do "
        "case ${path##*/} in sacct|sacctmgr|salloc|sattach|sbatch|sbcast|scancel|scontrol|sdiag"
        "|sinfo|sprio|squeue|sreport|srun|sshare|sstat|strigger) "
        f"printf %s {wrapper} > ${{path##*/}} && chmod 0755 ${{path##*/}};; "
        "esac; done"
    )
