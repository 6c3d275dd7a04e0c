"""The findings of `harness check` are compared with what the real daemons do.

The cases are small and made for it. With HARNESS_CORPUS set to a directory of configuration
directories, these are compared too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from random import Random

import pytest

import reference
import reference_cases
from harness import releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import ScenarioError
from harness.plan import make_plan
from harness.render import render
from harness.site import importer
from harness.slurmconf.check import Finding, check_path
from harness.slurmconf.check.log_messages import is_about
from harness.slurmconf.check.nodes import names_of

# Where check and a daemon may differ, and why.
KNOWN_DIFFERENCES = {
    (
        "20.11",
        "AcctGatherEnergyType=acct_gather_energy/rsmi",
    ): "Debian does not package this plugin of the release",
    (
        "20.11",
        "slurmd AcctGatherEnergyType=acct_gather_energy/rsmi",
    ): "Debian does not package this plugin of the release",
    (
        "23.02",
        "slurmd AcctGatherEnergyType=acct_gather_energy/rsmi",
    ): "slurmd of this release crashes on a host without GPUs",
    (
        "23.02",
        "slurmd AcctGatherEnergyType=acct_gather_energy/gpu",
    ): "slurmd of this release crashes on a host without GPUs",
    (
        "23.11",
        "slurmd SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxNodeCount=0",
    ): "only slurmd of 23.11 and 24.05 takes 0 for a limit: it has no node",
    (
        "24.05",
        "slurmd SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxNodeCount=0",
    ): "only slurmd of 23.11 and 24.05 takes 0 for a limit: it has no node",
    (
        "25.05",
        "slurmd tree: ",
    ): "slurmd crashes (SIGSEGV) once it has logged the error",
    (
        "25.05",
        "slurmd yaml: tree: {switches: []}",
    ): "slurmd crashes (SIGSEGV) once it has logged the error",
    (
        "22.05",
        "NodeName=m[1-3",
    ): "slurmctld looks for a host of this name for longer than the rig waits",
    (
        "20.11",
        "slurmd cloud gres gpu:1: AutoDetect=nvml",
    ): "Debian builds slurmd without NVML (_get_gpu_type)",
}
# Releases whose slurmctld reads SuspendExc... when it first looks for idle nodes: the rig does not
# always see that.
READ_LATER = ("20.11", "21.08", "22.05")
# Lines of a log that the configuration does not cause by itself, and lines that only follow others.
NOT_FROM_THE_CONFIGURATION = {
    "knl_cray|initialize node features": "Cray's programs and their file are missing",
    "_check_node_status|_update_node_state": "Cray's programs are missing",
    "_shutdown_bu_thread": "no other controller runs",
    "Could not connect to": "JobCompLoc names a service",
    "Not allowed to register to external": "AccountingStorageExternalHost names another slurmdbd",
    r"chown\(": "the directory of a log file does not exist",
    "Attempt to change gres/.* invalid with File": "follows from the line about Cores",
    "#{48}|SEVERE SECURITY|CORRECT FILE PERMISSIONS": "around the line about a directory",
    "lookup failure|invalid node specified": "before the line about the option with the node",
    "Even though we are collecting": "follows from data that is gathered, but not stored",
    "plugin name for|cannot find .* plugin for": "before the line about the plugin",
    "getaddrinfo|Address family|failure on m]": "before or after the line about a host's name",
    ": No such file or directory|exit status 127": "a program or directory does not exist",
    "^error: _parse_single_range": "before the line about the option with the range",
    "Zero Bytes were transmitted": "no command of the rig can authenticate",
    "slurm_receive_msg .*timed out": "with MessageTimeout=0, slurmctld waits for no message",
    "Error connecting, bad data|not responding": "follows from the line about a host's name",
    "CONMGR_THREADS=.* suggested range": "depends on the number of CPUs",
    "^error: Duplicated NodeHostName": "Slurm is built without --enable-multiple-slurmd",
    "dw_wlm_cli|^error: (pools status|json parser failed|failed to find DataWarp)": "Cray's program"
    " is missing",
    "description: Expected OpenAPI type": "the value of another type is converted",
}
# Why slurmctld refuses what it would accept if it were built with --enable-multiple-slurmd.
ONE_SLURMD_PER_HOST = "fatal: At least as many NodeAddr are required as NodeName"
# Why a daemon refuses a plugin that was built without its library; 21.08 does not name the plugin.
NOT_BUILT = re.compile(r"can not open the \(null\) plugin|find that lib when Slurm was configured")
# Options that slurmd reads as slurmctld does, and does not use.
OF_SLURMCTLD = re.compile(
    "(DownNodes|Federation|JobComp|JobSubmit|Licenses|Mail|MaxArray|"
    "MaxJob|MaxMem|DefMem|MinJob|NodeSet|Partition|Preempt|Priority|Requeue|Resume|"
    "Scheduler|Slurmctld(Debug|Host|Parameters|Port)|StateSave|Suspend)",
    re.IGNORECASE,
)
CORPUS = os.environ.get("HARNESS_CORPUS")
SEED, HOSTLISTS = 1, 300
_ODD = "n|m|x|0|1|7|08|10|099|-|-|[|[|]|]|,|,| |+|."
ON_EACH_RELEASE = [
    pytest.param(name, marks=[pytest.mark.exhaustive] * (name != releases.DEFAULT))
    for name in reference.tested()
]
# Releases, and which of their cases are compared: every third, or all.
CASES_ON_EACH_RELEASE = [
    *([] if reference.ORIGIN else [(releases.DEFAULT, 3)]),
    *(pytest.param(name, 1, marks=pytest.mark.exhaustive) for name in reference.tested()),
]


def cases() -> list[reference.Case]:
    """Return the made-up cases."""
    return [
        *(reference.Case(name, files) for name, files in reference_cases.SLURMCTLD.items()),
        *(
            reference.Case(name, files, "slurmdbd")
            for name, files in reference_cases.SLURMDBD_CASES.items()
        ),
        *(
            reference.Case(name, files, "slurmd")
            for name, files in reference_cases.SLURMD_CASES.items()
        ),
    ]


def cases_of_slurmctld_for_slurmd(release: str, directory: Path) -> list[reference.Case]:
    """Return the cases of slurmctld for a slurmd of root, changed so that it needs no cgroups.

    Both daemons read slurm.conf with the same functions. So slurmd is not asked about a case if
    check says that no daemon refuses it, and slurmd reads no other file of it and uses none of the
    lines that it adds to slurm.conf.
    """
    given = [
        reference.Case(
            f"slurmd {name}",
            {**files, "slurm.conf": f"ProctrackType=proctrack/linuxproc\n{files['slurm.conf']}"},
            "slurmd",
            # GRES of the first CLOUD node, unless gres.conf is about n1.
            "cloud0"
            if name in reference_cases.GRES and "NodeName=n1" not in files["gres.conf"]
            else None,
        )
        for name, files in reference_cases.SLURMCTLD.items()
        if not re.search("ProctrackType|SlurmdUser=slurm", files["slurm.conf"])
        and name != "no node"
    ]
    return [
        case
        for number, case in enumerate(given)
        if len(case.files) > 1
        or not only_for_slurmctld(case.files["slurm.conf"])
        or refused(case, release, directory / f"given-{number}")
    ]


def refused(case: reference.Case, release: str, directory: Path) -> bool:
    """Return whether check says that any daemon refuses a case."""
    reference.write(case, directory)
    return any(one.severity == "fatal" for one in check_path(directory, releases.get(release)))


def only_for_slurmctld(slurm_conf: str) -> bool:
    """Return whether slurmd uses only the lines of the base."""
    common = {*reference_cases.BASE.splitlines(), "ProctrackType=proctrack/linuxproc"}
    return all(OF_SLURMCTLD.match(line) for line in slurm_conf.splitlines() if line not in common)


def log_differences(
    release: str, verdict: reference.Verdict, reported: Iterable[Finding]
) -> list[str]:
    """Return the errors and warnings that only the log of a daemon or only check has."""
    lines = [
        line
        for line in dict.fromkeys(verdict.problems)
        if not any(re.search(pattern, line) for pattern in NOT_FROM_THE_CONFIGURATION)
    ]
    found = [one for one in reported if one.severity in {"error", "warning"}]
    if releases.series(release) in READ_LATER:
        lines = [line for line in lines if "SuspendExc" not in line]
        found = [one for one in found if "SuspendExc" not in one.option]
    matches = [
        (line, one)
        for line in lines
        for one in found
        if line.startswith(f"{one.severity}: ") and is_about(line, one.option)
    ]
    logged, expected = {line for line, _ in matches}, {one for _, one in matches}
    return [
        *(f'only in the log: "{line}"' for line in lines if line not in logged),
        *(f"only of check: {one}" for one in found if one not in expected),
    ]


def depends_on_build(verdict: reference.Verdict, fatal: Iterable[Finding]) -> bool:
    """Return whether a daemon decides otherwise than Debian's, because it was built otherwise.

    Without --enable-multiple-slurmd, up to 24.05, a line needs at least as many NodeAddr as nodes,
    and ignores more (expand_nodeline_info); without a library, a plugin is missing.
    """
    if not verdict.started:
        return (
            verdict.fatal == ONE_SLURMD_PER_HOST
            or bool(verdict.plugins_not_packaged)
            or bool(NOT_BUILT.search(verdict.fatal or ""))
        )
    # NodeHostname is also the default of NodeAddr.
    counted = {"NodeAddr", "NodeHostname"}
    return bool(fatal) and all(one.option in counted and one.code == "count" for one in fatal)


def differences(release: str, given: Iterable[reference.Case], directory: Path) -> list[str]:
    """Print the confusion matrix, and return where check and the daemons differ."""
    matrix: dict[tuple[str, str], int] = {}
    found, series = [], releases.series(release)
    for number, (case, verdict) in enumerate(reference.verdicts(release, given)):
        assert verdict.started is not None, f"the rig failed on {case.name}: {verdict.rig}"
        reported = reference.findings(case, release, directory / str(number))
        fatal = [one for one in reported if one.severity == "fatal"]
        cell = ("starts" if verdict.started else "refuses", "fatal" if fatal else "no fatal")
        matrix[cell] = matrix.get(cell, 0) + 1
        if reference.ORIGIN and depends_on_build(verdict, fatal):
            continue
        if verdict.started != (not fatal) and (series, case.name) not in KNOWN_DIFFERENCES:
            found.append(
                f"{case.name}: {case.daemon} {cell[0]} ({verdict.fatal}, exit code"
                f" {verdict.exit_code}), check says {fatal or 'no fatal'}"
            )
        if verdict.started and case.daemon != "slurmd":
            found += [f"{case.name}: {one}" for one in log_differences(release, verdict, reported)]
    print(
        f"Slurm {release}: "
        + ", ".join(
            f"{daemon} and {reported} {n}" for (daemon, reported), n in sorted(matrix.items())
        )
    )
    return found


def cases_on(release: str, directory: Path) -> list[reference.Case]:
    """Return all cases for the default release, or for the only one that is tested.

    Of the others, each has those that check judges otherwise than on the default release, and its
    share of the rest: each case runs on the default release and on another.
    """
    others = [name for name in reference.tested() if name != releases.DEFAULT]
    if release not in others or len(others) == 1:
        return cases()
    share = others.index(release)
    return [
        case
        for number, case in enumerate(cases())
        if number % len(others) == share
        or judgement(case, release, directory / f"{number}")
        != judgement(case, releases.DEFAULT, directory / f"{number}-default")
    ]


def judgement(case: reference.Case, release: str, directory: Path) -> set[tuple[str, ...]]:
    """Return what check says of a case, without places and texts."""
    found = reference.findings(case, release, directory)
    return {(one.severity, one.option, one.code) for one in found}


@pytest.mark.parametrize(("release", "every"), CASES_ON_EACH_RELEASE)
def test_check_says_fatal_error_and_warning_exactly_where_the_daemon_does(
    release: str, every: int, tmp_path: Path
) -> None:
    given = cases_on(release, tmp_path / "judged")[::every]
    found = differences(release, given, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("release", "every"), CASES_ON_EACH_RELEASE)
def test_check_says_which_fatal_problems_of_slurmctld_slurmd_has_too(
    release: str, every: int, tmp_path: Path
) -> None:
    given = cases_of_slurmctld_for_slurmd(release, tmp_path)[::every]
    found = differences(release, given, tmp_path)
    assert not found, "\n".join(found)


def a_hostlist(random: Random) -> str:
    """Return random text that is a hostlist, or nearly one."""

    def text(pieces: str, most: int) -> str:
        return "".join(random.choice(pieces.split("|")) for _ in range(random.randint(1, most)))

    def span() -> str:
        first = random.choice(["0", "1", "08", "9", "098", str(random.randrange(200))])
        last = random.choice(["", "-", "-12", "-010", f"-{int(first) + random.randrange(30)}"])
        return f"{first}{last}"

    def part() -> str:
        spans = [f"[{','.join(span() for _ in range(random.randint(1, 3)))}]" for _ in range(3)]
        return "".join(
            f"{text('n|a1b|c.d|x-|r', 1)}{ranges}" for ranges in spans[: random.randint(0, 3)]
        ) + text("|n|-ib|1", 1)

    if random.random() < 0.4:
        return text(_ODD, 12)
    whole = random.choice([",", ",", ",", " ", ",,", "\t"]).join(
        part() for _ in range(random.randint(1, 3))
    )
    index = random.randint(0, len(whole))
    return whole if random.random() < 0.7 else whole[:index] + text(_ODD, 1) + whole[index + 1 :]


@pytest.mark.parametrize("release", ON_EACH_RELEASE)
def test_hostlists_have_the_names_that_scontrol_shows(release: str) -> None:
    random = Random(SEED)  # noqa: S311  (not a secret)
    # scontrol would read an initial hyphen as an option.
    hostlists = [f"n{a_hostlist(random)}" for _ in range(HOSTLISTS)]
    grammar = releases.get(release)
    wrong = [
        (text, names, ours)
        for text, names in zip(hostlists, reference.hostnames(release, hostlists), strict=True)
        if names != (ours := names_of(text, grammar))
    ]
    print(f"Slurm {release}: seed {SEED}, {len(hostlists)} hostlists, {len(wrong)} are different")
    assert wrong == []


@pytest.mark.skipif(not CORPUS, reason="HARNESS_CORPUS names no directory of configurations")
@pytest.mark.parametrize("release", reference.tested())
def test_check_agrees_with_the_daemons_on_a_corpus(release: str, tmp_path: Path) -> None:
    found = differences(release, reference.corpus(Path(CORPUS or "")), tmp_path)
    assert not found, "\n".join(found)


def without_fatal(case: reference.Case, release: str, directory: Path) -> reference.Case:
    """Return a case without the lines that check calls fatal, so that the daemon may start."""
    for attempt in map(str, range(5)):
        lines = {name: text.split("\n") for name, text in case.files.items()}
        for one in reference.findings(case, release, directory / attempt):
            name = os.path.relpath(one.file, directory / attempt)
            if one.severity == "fatal" and one.code != "missing" and name in lines:
                lines[name][one.line - 1] = ""
        case = replace(case, files={name: "\n".join(text) for name, text in lines.items()})
    return case


@pytest.mark.skipif(not CORPUS, reason="HARNESS_CORPUS names no directory of configurations")
@pytest.mark.parametrize("release", reference.tested())
def test_check_says_error_and_warning_where_the_daemons_do_without_what_is_fatal(
    release: str, tmp_path: Path
) -> None:
    given = [
        without_fatal(case, release, tmp_path / f"before-{number}")
        for number, case in enumerate(reference.corpus(Path(CORPUS or "")))
    ]
    found = [
        f"{case.name}: {one}"
        for number, (case, verdict) in enumerate(reference.verdicts(release, given))
        if verdict.started
        for one in log_differences(
            release, verdict, reference.findings(case, release, tmp_path / str(number))
        )
    ]
    assert found == []


@pytest.mark.parametrize("release", ON_EACH_RELEASE)
def test_check_says_where_nobody_can_read_metrics(release: str, tmp_path: Path) -> None:
    known = releases.get(release).options["slurm.conf"]
    if "metricstype" not in known:
        pytest.skip(f"metrics come with {releases.since('slurm.conf', 'MetricsType')}")
    given = [
        reference.Case(name, files, shows=True)
        for name, files in reference_cases.METRICS.items()
        if all(line.partition("=")[0].lower() in known for line in name.splitlines())
    ]
    wrong = []
    for number, (case, verdict) in enumerate(reference.verdicts(release, given)):
        found = reference.findings(case, release, tmp_path / str(number))
        unread = any(one.code == "metrics" for one in found)
        if len(verdict.metrics) != 2 or unread != (200 not in verdict.metrics):
            wrong.append(f"{case.name}: unread: {unread}, statuses: {verdict.metrics}")
    assert not wrong, "\n".join(wrong)


def imported(case: reference.Case, release: str, directory: Path) -> reference.Case:
    """Return the case after importing it as a scenario and rendering that."""
    reference.write(case, directory)
    data, _ = importer.import_directory(directory, releases.get(release))
    path = directory.with_suffix(".yml")
    path.write_text(importer.dump(data))
    plan = make_plan("imported", scenario.load(path), OWN_MACHINES)
    tree = render(plan)[plan.with_daemon("slurmctld")[0].name]
    files = {
        PurePosixPath(file.path).name: file.text.encode().decode("latin-1")  # as a case needs it
        for file in tree
        if file.path.startswith("/etc/slurm/")
    }
    return reference.Case(case.name, files, shows=True)


def shown(verdict: reference.Verdict) -> dict[str, set[str]]:
    """Return the configuration that the controller prints, without what differs between starts."""
    changing = (
        r"^(BOOT_TIME|Configuration data as of|Slurmctld.* at ).*"
        r"|\b(BootTime|SlurmdStartTime|LastBusyTime)=\S+|@[-\dT:]+\]$"
        # Set at the first ping of a node, which has no slurmd here (node_mgr.c:_node_not_resp).
        r"|\+NOT_RESPONDING\b|(?<=[A-Z])\*(?=[ +])"
    )
    return {
        part: {re.sub(changing, "", line).strip() for line in getattr(verdict, part).splitlines()}
        for part in ("config", "node", "partition")
    }


def round_trip(release: str, given: list[reference.Case], directory: Path) -> list[str]:
    """Return the cases whose configuration is different after they were imported and rendered."""
    before = {
        case.name: verdict
        for case, verdict in reference.verdicts(
            release, (replace(case, shows=True) for case in given)
        )
        if verdict.started
    }
    again, found = [], []
    for number, case in enumerate(case for case in given if case.name in before):
        try:
            again.append(imported(case, release, directory / str(number)))
        except ScenarioError as error:
            found.append(f"{case.name} is no scenario: {error}")
    for case, verdict in reference.verdicts(release, again):
        if not verdict.started:
            found.append(f"{case.name} starts no more: {verdict.problems[-2:]}")
            continue
        one, other = shown(before[case.name]), shown(verdict)
        found += [
            f"{case.name}: {part}: {one[part] ^ other[part]}"
            for part in one
            if one[part] != other[part]
        ]
    print(
        f"Slurm {release}: {len(before)} of {len(given)} start, {len(before) - len(found)} are the"
        " same once imported"
    )
    return found


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_configuration_is_the_same_once_imported_and_rendered(every: int, tmp_path: Path) -> None:
    # Nodes and partitions of a scenario cannot have the names that Slurm reads from the last three.
    odd_names = {"NodeName=m[1-2]]", "NodeName=m+1", "PartitionName=q,q Nodes=n1"}
    # A scenario sorts the names of a line, and localhost must not be the first.
    left_out = {"no node", "no partition", "NodeName=n1,localhost", *odd_names}
    # With this, scontrol reaches slurmctld only now and then.
    left_out.add("CommunicationParameters=keepalivetime=0")
    # slurmctld does not start where check says so; see above.
    given = [
        case
        for number, case in enumerate(cases())
        if number % every == 0
        and case.daemon == "slurmctld"
        and case.name not in left_out
        and not any(
            severity == "fatal"
            for severity, *_ in judgement(case, releases.DEFAULT, tmp_path / f"given-{number}")
        )
    ]
    assert round_trip(releases.DEFAULT, given, tmp_path) == []


@pytest.mark.skipif(not CORPUS, reason="HARNESS_CORPUS names no directory of configurations")
@pytest.mark.parametrize("release", reference.tested())
def test_corpus_is_the_same_configuration_once_imported_and_rendered(
    release: str, tmp_path: Path
) -> None:
    given = [case for case in reference.corpus(Path(CORPUS or "")) if case.daemon == "slurmctld"]
    assert round_trip(release, given, tmp_path) == []
