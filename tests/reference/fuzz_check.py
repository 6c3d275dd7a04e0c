"""Look for configurations on which `harness check` and the real daemons disagree.

`make fuzz-check` changes real configurations, each in one place, asks the daemon and check about
the result, and reduces each disagreement to the smallest files that still show it. The same seed
makes the same changes.
"""

from __future__ import annotations

import argparse
import re
import secrets
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path, PurePosixPath
from random import Random

import grid

import reduction
import reference
import reference_cases
from harness import interrupts, releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import UsageError
from harness.plan import make_plan
from harness.render import render
from mutations import mutate
from reference import Case, Verdict

_SCENARIOS = Path(__file__).parents[2] / "scenarios"
_MOST_BYTES = 200_000  # of a configuration: larger ones take the daemons seconds
_MOST_CASES = 20  # that a seed chooses to change
_BATCH = 50  # cases of one container
_MOST_RUNS = 60  # of the daemon, to reduce one disagreement
_DISAGREE = {
    ("starts", "fatal"),
    ("refuses", "no fatal"),
    ("starts", "crash"),
    ("refuses", "crash"),
}
_SMALL = {
    "slurmctld": reference_cases.BASE,
    "slurmdbd": reference_cases.SLURMDBD,
    "slurmd": reference_cases.with_slurmd()["slurm.conf"],
}
# slurmd says this where the configuration has no node for the rig to choose.
_NO_NODE = "Unable to find node record for node"
# What keeps slurmd from starting in the container, which lacks cgroups and starts it as root, and
# what takes its place.
_UNSUITABLE = (
    (r"^\s*SlurmdUser\s*=.*$", ""),
    (r"^(\s*ProctrackType\s*=\s*)proctrack/cgroup", r"\1proctrack/linuxproc"),
    (r"^(\s*JobAcctGatherType\s*=\s*)jobacct_gather/cgroup", r"\1jobacct_gather/linux"),
    (r",task/cgroup|task/cgroup,", ""),
    (r"task/cgroup", "task/none"),
)
# What differs between messages about the same problem.
_DETAILS = re.compile(r'"[^"]*"|\([^)]*\)|[\d\[\]]+')


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the daemon and check make of a case.

    `daemon` is starts, refuses, or why there is no verdict; `check` is fatal, no fatal, or crash.
    """

    case: Case
    daemon: str
    check: str
    words_of_daemon: tuple[str, ...]
    words_of_check: tuple[str, ...]

    @property
    def disagree(self) -> bool:
        """Whether the daemon does not do what check predicts."""
        return (self.daemon, self.check) in _DISAGREE

    @property
    def kind(self) -> tuple[str, ...]:
        """What is probably the same for disagreements with the same cause."""
        words = self.words_of_daemon[-2:] if self.check == "no fatal" else self.words_of_check
        return self.daemon, self.check, *(_DETAILS.sub("", word) for word in words)


def compare(release: str, cases: Sequence[Case]) -> Iterator[Comparison]:
    """Yield what the daemons of a release and check make of cases, in order."""
    with closing(reference.verdicts(release, cases)) as verdicts:
        for case, verdict in verdicts:
            check, words = _check(release, case)
            problems = verdict.problems or (verdict.rig or verdict.log_tail,)
            yield Comparison(case, _daemon(verdict), check, problems, words)


def _daemon(verdict: Verdict) -> str:
    if verdict.started is None:
        return "the rig failed"
    if verdict.started:
        return "starts"
    if verdict.timed_out:
        return "timed out"
    if any(_NO_NODE in problem for problem in verdict.problems):
        return "not a node"
    return "plugin not packaged" if verdict.plugins_not_packaged else "refuses"


def _check(release: str, case: Case) -> tuple[str, tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as directory:
        try:
            findings = reference.findings(case, release, Path(directory))
        except UsageError as error:
            return "no answer", (str(error),)
        except Exception:
            return "crash", tuple(traceback.format_exc().splitlines()[-3:])
    fatal = [
        f"{one.option}: {one.message} [{one.code}]" for one in findings if one.severity == "fatal"
    ]
    return ("fatal" if fatal else "no fatal"), tuple(fatal)


def shipped() -> list[Case]:
    """Return what the shipped scenarios render to, for each host with a slurmctld or slurmdbd."""
    cases = []
    for path in sorted(_SCENARIOS.glob("*.yml")):
        plan = make_plan(path.stem, scenario.load(path), OWN_MACHINES)
        tree = render(plan)
        for daemon in ("slurmctld", "slurmdbd"):
            for host in plan.with_daemon(daemon):
                files = {
                    PurePosixPath(file.path).name: file.text.encode().decode("latin-1")
                    for file in tree[host.name]
                    # The rig creates programs; a case's files are not executable.
                    if file.path.startswith("/etc/slurm/")
                    and file.path.endswith((".conf", ".yaml"))
                }
                cases.append(Case(f"{path.stem} {host.name}", files, daemon))
    return cases


def for_slurmd(case: Case) -> Case:
    """Return slurmctld's case as one that a slurmd of the container can start with."""
    text = case.files["slurm.conf"]
    for unsuitable, other in _UNSUITABLE:
        text = re.sub(unsuitable, other, text, flags=re.IGNORECASE | re.MULTILINE)
    if not re.search(r"^\s*ProctrackType\s*=", text, re.IGNORECASE | re.MULTILINE):
        text = f"ProctrackType=proctrack/linuxproc\n{text}"
    return replace(case, daemon="slurmd", files={**case.files, "slurm.conf": text})


def repaired(case: Case, release: str) -> Case:
    """Return a case without the lines that check calls fatal, so that changes to it can matter."""
    for _ in range(10):
        with tempfile.TemporaryDirectory() as directory:
            findings = reference.findings(case, release, Path(directory))
        bad = {(Path(one.file).name, one.line) for one in findings if one.severity == "fatal"}
        if not bad:
            break
        case = replace(
            case,
            files={
                name: "".join(
                    line
                    for number, line in enumerate(text.splitlines(keepends=True), 1)
                    if (name, number) not in bad
                )
                for name, text in case.files.items()
            },
        )
    return case


def mutated(cases: Sequence[Case], release: str, seed: int) -> Iterator[tuple[Case, Case]]:
    """Yield cases with one change each, and what they were, without end; the seed decides."""
    for number in count():
        random = Random(f"{seed}/{number}")
        case = random.choice(cases)
        main_file = reference.MAIN_FILES[case.daemon]
        others = [name for name in case.files if name not in reference.MAIN_FILES.values()]
        file = random.choice(others) if others and random.random() < 0.15 else main_file
        what, text = mutate(random, file, case.files[file], release)
        name = f"{case.name}: {what} in {file} (mutation {number})"
        yield replace(case, name=name, files={**case.files, file: text}), case


def guess(case: Case, before: Case) -> Iterator[Case]:
    """Yield smaller cases that probably show the same: a small one with the change, no comments."""
    main_file = reference.MAIN_FILES[case.daemon]
    old = {line.strip() for line in before.files[main_file].splitlines()}
    new = [line for line in case.files[main_file].splitlines() if line.strip() not in old]
    if new:
        changed = {_key(line) for line in new}
        kept = [line for line in _SMALL[case.daemon].splitlines() if _key(line) not in changed]
        yield replace(case, files={main_file: "".join(f"{line}\n" for line in [*kept, *new])})
    lines = {name: text.splitlines(keepends=True) for name, text in case.files.items()}
    no_comment = re.compile(r"\s*[^#\s]")
    yield replace(
        case, files={name: "".join(filter(no_comment.match, many)) for name, many in lines.items()}
    )


def _key(line: str) -> str:
    return line.partition("=")[0].strip().lower()


def reduced(comparison: Comparison, before: Case, release: str) -> Comparison:
    """Return the same disagreement about the smallest files, after a few runs of the daemon."""
    smallest, runs = comparison, 0

    def test(many: Sequence[reduction.Files]) -> list[bool]:
        nonlocal smallest, runs
        cases = [replace(comparison.case, files=files) for files in many]
        alike = [case for case in cases if _is_worth_a_run(case)][: _MOST_RUNS - runs]
        runs += len(alike)
        same = [one for one in compare(release, alike) if one.daemon == comparison.daemon]
        smallest = min([smallest, *same], key=lambda one: sum(map(len, one.case.files.values())))
        accepted = [one.case for one in same]
        return [case in accepted for case in cases]

    def _is_worth_a_run(case: Case) -> bool:
        has_main_file = reference.MAIN_FILES[case.daemon] in case.files
        return has_main_file and _check(release, case)[0] == comparison.check

    test([case.files for case in guess(comparison.case, before)])
    reduction.reduced(smallest.case.files, test)
    return smallest


class TimeIsUpError(BaseException):
    """The given minutes are over; no crash of check, whatever it does at this moment."""


class Tally:
    """What was compared so far, and the kinds of disagreement that were shown."""

    def __init__(self, release: str) -> None:
        self._release = release
        self._counts: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, ...]] = Counter()

    def add(self, comparisons: Iterable[tuple[Comparison, Case]], weight: int = 1) -> None:
        """Count comparisons with what their cases were before; show new kinds of disagreement."""
        new = []
        try:
            for one, before in comparisons:
                self._counts[f"{one.daemon}, check: {one.check}"] += weight
                if one.disagree:
                    self.kinds[one.kind] += 1
                    new += [(one, before)] * (self.kinds[one.kind] == 1)
            while new:
                show(reduced(*new[0], self._release))
                del new[0]
        except TimeIsUpError:
            for one, _ in new:
                show(one)
            raise
        number = len(self.kinds)
        print(f"{self._counts.total()} compared; {number} kinds of disagreement", flush=True)

    def show(self) -> None:
        """Print the numbers."""
        for what, number in sorted(self._counts.items()):
            print(f"{number:6} {what}")
        print(f"{self.kinds.total()} disagreements of {len(self.kinds)} kinds")


def fuzz(release: str, seed: int, cases: Sequence[Case], tally: Tally) -> None:
    """Change configurations and compare them, until the time is up."""
    small = [case for case in cases if sum(map(len, case.files.values())) <= _MOST_BYTES]
    chosen = Random(seed).sample(small, min(len(small), _MOST_CASES))
    unchanged = [repaired(case, release) for case in chosen]
    compared = list(compare(release, unchanged))
    tally.add((one, one.case) for one in compared)
    started = [one.case for one in compared if one.daemon == "starts"]
    print(f"{len(started)} of {len(unchanged)} configurations start; these are changed", flush=True)
    changes = mutated(started, release, seed)
    while started:
        batch = [*islice(changes, _BATCH)]
        with closing(compare(release, [case for case, _ in batch])) as comparisons:
            tally.add(zip(comparisons, (before for _, before in batch), strict=True))


def compare_grid(release: str, seed: int, tally: Tally) -> None:
    """Compare lines with one option and a plausible value each, in an order that the seed decides.

    Lines that check accepts share a configuration; if the daemon refuses it, its halves are tried.
    """
    lines = grid.lines(release)
    Random(seed).shuffle(lines)
    groups = grid.groups(lines, lambda case: _check(release, case)[0] == "no fatal")
    halves: list[list[grid.Line]] = []
    while batch := [*halves, *islice(groups, _BATCH)]:
        halves = []
        cases = [grid.case(group) for group in batch]
        for group, one in zip(batch, compare(release, cases), strict=True):
            if len(group) > 1 and one.daemon != "starts":
                middle = len(group) // 2
                halves += [group[:middle], group[middle:]]
            else:
                tally.add([(one, one.case)], len(group))


def show(one: Comparison) -> None:
    """Print a disagreement."""
    print(f"\n=== {one.case.daemon} {one.daemon}, check says {one.check}: {one.case.name}")
    for name, text in one.case.files.items():
        print(f"--- {name}\n{text}" + ("" if text.endswith("\n") else "\n(no end of line)"))
    for who, words in ((one.case.daemon, one.words_of_daemon), ("check", one.words_of_check)):
        for word in words:
            print(f"{who}: {word}")
    print(flush=True)


def main() -> int:
    """Run the command line; return its exit code, 1 if there were disagreements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--release", choices=releases.packaged(), default=releases.DEFAULT)
    parser.add_argument("--corpus", type=Path, help="a directory of configuration directories")
    parser.add_argument("--grid", action="store_true", help="try each option with plausible values")
    parser.add_argument("--daemon", choices=reference.MAIN_FILES, help="ask only this daemon")
    given = parser.parse_args()
    interrupts.raise_once()  # so that no container stays behind
    print(f"Slurm {given.release}, seed {given.seed}, {given.minutes:g} minutes", flush=True)
    tally = Tally(given.release)
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, given.minutes * 60)
    try:
        if given.grid:
            compare_grid(given.release, given.seed, tally)
        else:
            cases = reference.corpus(given.corpus) if given.corpus else shipped()
            cases += [for_slurmd(case) for case in cases if case.daemon == "slurmctld"]
            asked = [case for case in cases if given.daemon in {None, case.daemon}]
            fuzz(given.release, given.seed, asked, tally)
    except TimeIsUpError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    tally.show()
    return min(1, len(tally.kinds))


def _time_is_up(*_: object) -> None:
    raise TimeIsUpError


if __name__ == "__main__":
    sys.exit(main())
