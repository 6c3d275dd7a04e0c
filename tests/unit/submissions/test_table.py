from __future__ import annotations

from pathlib import Path

import pytest

from fakes import SCENARIO
from harness import scenario
from harness.errors import UsageError
from harness.submissions import table
from harness.submissions.table import Row

CLUSTERS = scenario.load(SCENARIO)


def read(tmp_path: Path, text: str, name: str = "t.yml") -> list[Row]:
    path = tmp_path / name
    path.write_text(text)
    return table.read(path, CLUSTERS)


def problems(tmp_path: Path, text: str, name: str = "t.yml") -> list[str]:
    with pytest.raises(UsageError) as error:
        read(tmp_path, text, name)
    return error.value.message.replace(f"{tmp_path}/", "").splitlines()


def test_options_reach_sbatch_as_they_are_written(tmp_path: Path) -> None:
    (row,) = read(
        tmp_path,
        "- user: alice\n  options: [-p, long, '--comment=a b']\n  time: 08:00\n  mem: 1.10G\n"
        "  nodes: 2\n  exclusive: true\n  requeue: false\n  qos: null\n  partition: [a, b]\n",
    )
    assert row.options == (
        *("-p", "long", "--comment=a b"),
        *("--time=08:00", "--mem=1.10G", "--nodes=2", "--exclusive", "--partition=a,b"),
    )
    assert (row.user, row.cluster, row.place) == ("alice", "single", f"{tmp_path}/t.yml:1")


def test_csv_has_the_same_rows_as_yaml(tmp_path: Path) -> None:
    from_csv = read(
        tmp_path,
        "user,name,options,time,hold,expect.accepted,expect.reason\n"
        'bob,"a, b",-p long,2-0,true,no,time limit\n\nalice,,,,,,\n',
        "t.csv",
    )
    from_yaml = read(
        tmp_path,
        '- {user: bob, name: "a, b", options: -p long, time: 2-0, hold: yes,'
        " expect: {accepted: no, reason: time limit}}\n\n\n- user: alice\n",
    )
    assert [row.options for row in from_csv] == [("-p", "long", "--time=2-0", "--hold"), ()]
    assert [(row.user, row.name, row.options, row.expected) for row in from_csv] == [
        (row.user, row.name, row.options, row.expected) for row in from_yaml
    ]
    assert [row.place.rpartition(":")[2] for row in from_csv] == ["2", "4"]


def test_all_problems_are_reported_with_their_places(tmp_path: Path) -> None:
    assert problems(
        tmp_path,
        "- user: alise\n  cluster: moon\n"
        "- time: 5\n"
        "- {user: bob, wait: true, time: {a: 1}, expect: {outcom: x, accepted: maybe}}\n"
        "- {user: bob, user: bob, Time: 5, options: 'it''s'}\n"
        "- text\n",
    ) == [
        't.yml:1:3: user: no user "alise"; did you mean "alice"?',
        't.yml:2:3: cluster: no cluster "moon"; known: single',
        "t.yml:3:1: user: is required",
        "t.yml:4:15: wait: wait is not supported",
        "t.yml:4:27: time: must be a single value",
        't.yml:4:50: expect.outcom: unknown column; did you mean "outcome"?',
        "t.yml:4:61: expect.accepted: must be true or false",
        "t.yml:5:15: user: is defined twice",
        "t.yml:5:26: Time: not the long name of an sbatch option",
        "t.yml:5:35: options: No closing quotation",
        "t.yml:6:1: a row must be a mapping",
    ]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("t.yml", "", "t.yml:1:1: no submissions"),
        ("t.yml", "user: alice", "t.yml:1:1: a table must be a list of rows"),
        ("t.yml", "- [", "t.yml:1:4: not YAML: "),
        ("t.yml", "- user: bob\n- user: bob", 't.yml:1:1: two rows are "bob": name them'),
        (
            "t.yml",
            "- {user: bob, options: [--wrap=x]}",
            "t.yml:1:15: options: wrap is not supported",
        ),
        (
            "t.yml",
            "- {user: bob, options: [-n1, ':', -n2]}",
            "t.yml:1:15: options: : is not supported",
        ),
        (
            "t.yml",
            "- {user: bob, options: -M aws}",
            "t.yml:1:15: options: clusters is not supported",
        ),
        ("t.csv", "user,time\nbob,1,2\n", "t.csv:2:1: 3 cells, but the header has 2"),
        ("t.csv", 'user\n"bob\n', "t.csv:2:1: not CSV: "),
        ("t.csv", "user,expect\nbob,x\n", "t.csv:2:1: expect: must be a mapping"),
    ],
)
def test_problem_of_a_table_has_its_place(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    assert problems(tmp_path, text, name)[0].startswith(problem)


def test_table_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*no\.yml: No such file or directory$"):
        table.read(tmp_path / "no.yml", CLUSTERS)
