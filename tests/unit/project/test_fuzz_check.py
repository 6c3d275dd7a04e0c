"""`make fuzz-check`: how it changes configurations and reduces them; no daemon runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest

import fuzz_check
import mutations
import reduction
import reference_cases
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
