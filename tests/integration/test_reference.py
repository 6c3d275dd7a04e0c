"""The findings of `harness check` are compared with what the real daemons do.

The cases are small and made for it. With HARNESS_CORPUS set to a directory of configuration
directories, these are compared too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from random import Random

import pytest

import reference
import reference_cases
from harness import releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.plan import make_plan
from harness.render import render
from harness.site import importer
from harness.slurmconf.check import Finding, check_path
from harness.slurmconf.check.nodes import names_of

# Where check and a daemon may differ, and why.
KNOWN_DIFFERENCES = {
    (
        "20.11",
        "AcctGatherEnergyType=acct_gather_energy/rsmi",
    ): "Debian does not package this plugin of the release",
    (
        "22.05",
        "AcctGatherEnergyType=acct_gather_energy/rsmi",
    ): "the plugin it is renamed to has a bug: undefined symbol",
    (
        "22.05",
        "NodeName=m[1-3",
    ): "slurmctld looks for a host of this name for longer than the rig waits",
}
CORPUS = os.environ.get("HARNESS_CORPUS")
SEED, HOSTLISTS = 1, 300
_ODD = "n|m|x|0|1|7|08|10|099|-|-|[|[|]|]|,|,| |+|."
ON_EACH_RELEASE = [
    pytest.param(name, marks=[pytest.mark.core] * (name == releases.DEFAULT))
    for name in releases.PACKAGED
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


def cases_of_slurmctld_for_slurmd() -> list[reference.Case]:
    """Return the cases of slurmctld, changed so that slurmd needs no cgroups."""
    return [
        reference.Case(
            name,
            {**files, "slurm.conf": f"ProctrackType=proctrack/linuxproc\n{files['slurm.conf']}"},
            "slurmd",
        )
        for name, files in reference_cases.SLURMCTLD.items()
        if "ProctrackType" not in files["slurm.conf"] and name != "no node"
    ]


def corpus() -> list[reference.Case]:
    """Return the cases of a corpus; a file name with slurm and .conf in it counts as slurm.conf."""
    found = []
    for directory in sorted(path for path in Path(CORPUS or "").iterdir() if path.is_dir()):
        for case in reference.read(directory):
            found.append(case)
        if not any(case.name == directory.name and case.daemon == "slurmctld" for case in found):
            names = [
                path.name for path in directory.glob("*slurm*.conf*") if "slurmdbd" not in path.name
            ]
            assert len(names) == 1, f"{directory} has no slurm.conf"
            files = {
                path.name: path.read_text("latin-1")
                for path in directory.iterdir()
                if path.is_file()
            }
            files["slurm.conf"] = files.pop(names[0])
            found.append(reference.Case(directory.name, files))
    return found


def write(case: reference.Case, directory: Path) -> None:
    """Write the files of a case to a directory."""
    for name, text in case.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "latin-1")


def findings(case: reference.Case, release: str, directory: Path) -> list[Finding]:
    """Return the findings of check for a case and its daemon."""
    write(case, directory)
    return [
        one for one in check_path(directory, releases.get(release)) if case.daemon in one.daemons
    ]


def differences(release: str, given: Iterable[reference.Case], directory: Path) -> list[str]:
    """Print the confusion matrix, and return where check and the daemons differ."""
    matrix: dict[tuple[str, str], int] = {}
    found = []
    for number, (case, verdict) in enumerate(reference.verdicts(release, given)):
        assert verdict.started is not None, f"the rig failed on {case.name}: {verdict.rig}"
        reported = findings(case, release, directory / str(number))
        fatal = [one for one in reported if one.severity == "fatal"]
        cell = ("starts" if verdict.started else "refuses", "fatal" if fatal else "no fatal")
        matrix[cell] = matrix.get(cell, 0) + 1
        if verdict.started != (not fatal) and (release, case.name) not in KNOWN_DIFFERENCES:
            found.append(
                f"{case.name}: {case.daemon} {cell[0]} ({verdict.fatal}), check says"
                f" {fatal or 'no fatal'}"
            )
    print(
        f"Slurm {release}: "
        + ", ".join(
            f"{daemon} and {reported} {n}" for (daemon, reported), n in sorted(matrix.items())
        )
    )
    return found


@pytest.mark.parametrize("release", ON_EACH_RELEASE)
def test_check_says_fatal_exactly_where_the_daemon_refuses_to_start(
    release: str, tmp_path: Path
) -> None:
    assert differences(release, cases(), tmp_path) == []


@pytest.mark.parametrize("release", releases.PACKAGED)
def test_check_says_which_fatal_problems_of_slurmctld_slurmd_has_too(
    release: str, tmp_path: Path
) -> None:
    assert differences(release, cases_of_slurmctld_for_slurmd(), tmp_path) == []


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
@pytest.mark.parametrize("release", releases.PACKAGED)
def test_check_agrees_with_the_daemons_on_a_corpus(release: str, tmp_path: Path) -> None:
    assert differences(release, corpus(), tmp_path) == []


def imported(case: reference.Case, release: str, directory: Path) -> reference.Case:
    """Return the case after importing it as a scenario and rendering that."""
    write(case, directory)
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
    return reference.Case(case.name, files)


def shown(verdict: reference.Verdict) -> dict[str, set[str]]:
    """Return the configuration that the controller prints, without what differs between starts."""
    changing = (
        r"^(BOOT_TIME|Configuration data as of|Slurmctld.* at ).*"
        r"|\b(BootTime|SlurmdStartTime|LastBusyTime)=\S+|@[-\dT:]+\]$"
    )
    return {
        part: {re.sub(changing, "", line).strip() for line in getattr(verdict, part).splitlines()}
        for part in ("config", "node", "partition")
    }


def round_trip(release: str, given: list[reference.Case], directory: Path) -> list[str]:
    """Return the cases whose configuration is different after they were imported and rendered."""
    before = {
        case.name: verdict
        for case, verdict in reference.verdicts(release, given)
        if verdict.started
    }
    again = [
        imported(case, release, directory / str(n))
        for n, case in enumerate(given)
        if case.name in before
    ]
    found = []
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
        f"Slurm {release}: {len(again)} of {len(given)} start, {len(again) - len(found)} are the"
        " same once imported"
    )
    return found


def test_configuration_is_the_same_once_imported_and_rendered(tmp_path: Path) -> None:
    # Nodes and partitions of a scenario cannot have the names that Slurm reads from the last three.
    odd_names = {"NodeName=m[1-2]]", "NodeName=m+1", "PartitionName=q,q Nodes=n1"}
    no_scenario = {"no node", "no partition", *odd_names}
    given = [
        case for case in cases() if case.daemon == "slurmctld" and case.name not in no_scenario
    ]
    assert round_trip(releases.DEFAULT, given, tmp_path) == []


@pytest.mark.skipif(not CORPUS, reason="HARNESS_CORPUS names no directory of configurations")
@pytest.mark.parametrize("release", releases.PACKAGED)
def test_corpus_is_the_same_configuration_once_imported_and_rendered(
    release: str, tmp_path: Path
) -> None:
    given = [case for case in corpus() if case.daemon == "slurmctld"]
    assert round_trip(release, given, tmp_path) == []
