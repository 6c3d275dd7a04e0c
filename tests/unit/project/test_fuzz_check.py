"""`make fuzz-check`: how it changes configurations and reduces them; no daemon runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

import grid
import pytest

import fuzz_check
import mutations
import reduction
import reference_cases
from harness import releases
from reference import Case

CASE = Case(
    "c", reference_cases.with_("SelectType=select/cons_tres", topology_conf="SwitchName=s\n")
)


def changed(seed: int, number: int) -> list[Case]:
    return [case for case, _ in islice(fuzz_check.mutated([CASE], "24.11", seed), number)]


def test_a_seed_determines_the_changes() -> None:
    assert changed(1, 50) == changed(1, 50)
    assert changed(1, 50) != changed(2, 50)


def test_each_case_has_one_changed_file() -> None:
    for case in changed(3, 200):
        names = [name for name, text in case.files.items() if text != CASE.files[name]]
        assert len(names) == 1, case.name
        assert names[0] in case.name


def test_slurmd_needs_no_cgroups() -> None:
    text = "TaskPlugin = task/affinity,task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n"
    case = fuzz_check.for_slurmd(Case("c", {"slurm.conf": text}))
    assert case.daemon == "slurmd"
    assert case.files["slurm.conf"].splitlines() == [
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin = task/affinity",
        "JobAcctGatherType=jobacct_gather/linux",
    ]


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_every_mutation_changes_a_configuration(name: str) -> None:
    text = CASE.files["slurm.conf"]
    mutated = {
        mutations.MUTATIONS[name](Random(seed), "slurm.conf", text, "24.11") for seed in range(20)
    }
    assert mutated - {text}


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n", "odd"])
def test_any_text_can_be_changed(text: str) -> None:
    for name, mutation in mutations.MUTATIONS.items():
        for seed in range(20):
            assert isinstance(mutation(Random(seed), "slurm.conf", text, "24.11"), str), name


def test_files_are_reduced_to_the_words_that_matter() -> None:
    files = {
        "slurm.conf": "".join(f"Option{n}=1\n" for n in range(100))
        + "NodeName=a,b CPUs=2 Port=0\n",
        "gres.conf": "Name=gpu\n",
    }

    def matters(many: Sequence[reduction.Files]) -> list[bool]:
        texts = [one.get("slurm.conf", "") for one in many]
        return ["Option17" in text and "Port=0" in text for text in texts]

    assert reduction.reduced(files, matters) == {"slurm.conf": "Option17=1 Port=0"}


def test_files_that_cannot_be_reduced_stay() -> None:
    files = {"slurm.conf": "A=1 B=2,3\n\nC=4"}
    assert reduction.reduced(files, lambda many: [one == files for one in many]) == files


@pytest.mark.parametrize("release", ["20.11", "26.05"])
def test_grid_has_every_option_of_slurm_conf_with_several_values(release: str) -> None:
    lines = grid.lines(release)
    named = {line.option for line in lines if line.section == "slurm.conf"}
    known = releases.get(release).options["slurm.conf"].values()
    assert named == {option.name for option in known if option.type != "array"}
    assert all(sum(line.option == name for line in lines) > 5 for name in named)
    assert {line.file for line in lines} >= {"slurmdbd.conf", "gres.conf", "topology.conf"}


def test_lines_of_the_grid_that_check_accepts_share_a_configuration() -> None:
    lines = [line for line in grid.lines("24.11") if line.section == "slurm.conf NodeName"]
    some = lines[::15]
    groups = list(grid.groups(some, lambda case: "CPUs" not in case.name))
    assert sorted(map(str, some)) == sorted(str(line) for group in groups for line in group)
    assert max(map(len, groups)) > 5
    assert all(len(group) == 1 for group in groups if any(one.option == "CPUs" for one in group))
    for group in groups:
        assert len({line.option for line in group}) == len(group)
        text = grid.case(group).files["slurm.conf"]
        assert text.count("NodeName=m") == len(group)
