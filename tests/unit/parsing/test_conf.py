"""The reader of slurm.conf's grammar: it loses nothing, and it sees what Slurm's parser sees."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import releases
from harness.parsing import conf
from harness.slurmconf.check import check_path
from harness.slurmconf.check.parsed_file import KINDS, OTHER_KINDS

PIECES = [
    *'aN=#\\"; \t\r\n,[]-:%/*+.0\0\x1cä\ufeff\udcff',
    "NodeName=",
    "Nodes=",
    "Include ",
    "DEFAULT",
    "c[1-3]",
    "\\\n",
]
OPTIONS = sorted(
    {
        option.name
        for name in releases.KNOWN
        for part in releases.get(name).options.values()
        for option in part.values()
    }
)
VALUES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.sampled_from(["", '""', "1", "YES", "a,b", "x/y", "gpu:2"]),
)
LINES = st.lists(st.tuples(st.sampled_from(OPTIONS), VALUES).map("=".join), max_size=8)
TEXT = st.one_of(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.text(max_size=60))


def pairs(text: str) -> list[list[tuple[str, str]]]:
    """Return keys and values, line by line."""
    return [[(pair.key, pair.value) for pair in line.pairs] for line in conf.read(text)]


@given(TEXT)
@settings(max_examples=1000)
def test_joined_lines_are_the_text(text: str) -> None:
    assert "".join(line.raw for line in conf.read(text)) == text


@given(TEXT)
@settings(max_examples=500)
def test_every_place_lies_in_its_line(text: str) -> None:
    physical = text.split("\n")
    for line in conf.read(text):
        for pair in line.pairs:
            number, column = line.place(pair.start)
            assert line.number <= number <= len(physical)
            assert physical[number - 1][column - 1] == pair.key[0]


@given(
    st.dictionaries(
        st.sampled_from([*KINDS, *OTHER_KINDS]),
        st.one_of(TEXT, LINES.map("\n".join), LINES.map(" ".join)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(releases.KNOWN),
)
@settings(max_examples=int(os.environ.get("FUZZ", "300")))
def test_check_always_has_an_answer(files: dict[str, str], release: str) -> None:
    """FUZZ=100000 tries more examples."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            (Path(directory) / name).write_bytes(text.encode("utf-8", errors="surrogateescape"))
        lines = max(len(text.splitlines()) + 1 for text in files.values())
        for finding in check_path(Path(directory), releases.get(release), releases.get("20.11")):
            assert 1 <= finding.line <= lines
            assert finding.column >= 1


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Key=value", [[("Key", "value")]]),
        ("Key = value\n", [[("Key", "value")]]),
        ("\tkey=\tvalue\r\n", [[("key", "value")]]),
        ("A=B=C", [[("A", "B=C")]]),
        ("A=1 B=2", [[("A", "1"), ("B", "2")]]),
        ("A= B=2", [[("A", "B=2")]]),
        ('A="a b" B=c', [[("A", "a b"), ("B", "c")]]),
        ('A=""', [[("A", "")]]),
        ('A="a b"c', [[("A", '"a')]]),
        ("A=a#b", [[("A", "a")]]),
        (r"A=a\#b", [[("A", "a#b")]]),
        (r"A=C:\\x", [[("A", r"C:\x")]]),
        ("A=1 \\\n B=2\nC=3", [[("A", "1"), ("B", "2")], [("C", "3")]]),
        ("A=long\\\ner", [[("A", "longer")]]),
        ("A=1 \\ # why\nB=2", [[("A", "1"), ("B", "2")]]),
        ("# no \\\nB=2", [[], [("B", "2")]]),
        ("A+=1", [[("A", "1")]]),
        ("A", [[]]),
        ("A=", [[]]),
    ],
)
def test_pairs_match_slurms_parser(text: str, seen: list[list[tuple[str, str]]]) -> None:
    assert pairs(text) == seen


def test_rest_starts_at_the_first_unreadable_part() -> None:
    lines = list(conf.read("A=1 ; B\n\n  what\nA=b c\nInclude x y\n"))
    assert [line.rest for line in lines] == [4, None, 2, 4, 10]
    assert [line.include for line in lines] == [None, None, None, None, "x"]


def test_place_follows_continuations_and_escapes() -> None:
    (line,) = conf.read("NodeName=a \\\n   Gres=x\\#y CPUs=2\n")
    assert [line.place(pair.start) for pair in line.pairs] == [(1, 1), (2, 4), (2, 14)]


def test_include_must_begin_its_line() -> None:
    assert [
        line.include
        for line in conf.read("include a.conf\n Include b.conf\nIncludes c\nInclude=d\n")
    ] == [
        "a.conf",
        None,
        None,
        None,
    ]


def test_file_that_is_not_utf_8_is_read_as_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_bytes(b"# caf\xe9\nMailDomain=\xff\xfe\r\n")
    text = "".join(line.raw for line in conf.read(conf.read_text(path)))
    assert text == "# caf\xe9\nMailDomain=\xff\xfe\r\n"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("PartitionName=p Nodes=ALL Default=YES\nInclude x.conf", " Nodes=ALL Default=YES"),
        ("PartitionName=p Nodes=ALL Default=YES\nInclude x.conf\n", ""),
        ("PartitionName=p Nodes=ALL Default=YES\nInclude x.conf # y", ""),
        ("a=1\nInclude x.conf", ""),
        ("PartitionName=p Nodes=ALL\nMinJobAge=300000000000000\nInclude x.conf", ""),
        ("Include x.conf#some words\n", " words"),
        ("Include x.conf#word\n", ""),
    ],
)
def test_include_without_a_blank_after_it_reads_what_the_buffer_has(text: str, rest: str) -> None:
    lines = list(conf.read(text))
    assert conf.rest_of_include(lines[:-1], lines[-1]) == rest
