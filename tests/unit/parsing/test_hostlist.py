from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parsing import hostlist


def test_names_keep_the_order_of_the_expression() -> None:
    assert hostlist.expand("z,c[1-2],a07") == ("z", "c1", "c2", "a07")


def test_leading_zeros_stay() -> None:
    assert hostlist.expand("n[08-11]") == ("n08", "n09", "n10", "n11")
    assert hostlist.expand("n[98-0100]") == ("n98", "n99", "n100")
    assert hostlist.expand("n[098-1000]")[0::902] == ("n098", "n1000")


BEFORE_23_02 = hostlist.Grammar(suffixes=False, completes_brackets=True)
SINCE_23_02 = hostlist.Grammar(suffixes=False)


@pytest.mark.parametrize(
    ("text", "grammar", "names"),
    [
        ("m+1\tm{1-3},,n1-3] ", hostlist.NEWEST, ["m+1", "m{1-3}", "n1-3]"]),
        ("n[1-2]-ib", hostlist.NEWEST, ["n1-ib", "n2-ib"]),
        ("n[1-2]]", hostlist.NEWEST, ["n1]", "n2]"]),
        ("n[1-2]-ib", SINCE_23_02, 'text after its last "]"'),
        ("n[1-2", SINCE_23_02, '"[" without a "]"'),
        ("n[1-2", BEFORE_23_02, ["n]"]),
        ("[7001", BEFORE_23_02, ["7001"]),
        ("n[3-1]", hostlist.NEWEST, "Invalid range: `3-1'"),
        ("n[1,]", hostlist.NEWEST, "Invalid range: `'"),
        ("n[1-]", hostlist.NEWEST, ["n1"]),
        ("n[1a-2]", hostlist.NEWEST, ["n01", "n02"]),
        ("n[+1, 2]", hostlist.NEWEST, ["n01", "n02"]),
        ("n[1-70000]", hostlist.NEWEST, "Too many hosts in range `1-70000'"),
        ("a[1-2]b[3-4]", hostlist.NEWEST, ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[x]b[3-4]", hostlist.NEWEST, "Invalid range: `x'"),
        ("a[x]b[1]c[2]", hostlist.NEWEST, []),
        ("a[x]b[1-2]c[3],m", hostlist.NEWEST, ["m"]),
        ("a[b[1-2]", hostlist.NEWEST, ["a[b1", "a[b2"]),
    ],
)
def test_odd_hostlists_are_read_as_hostlist_create_does(
    text: str, grammar: hostlist.Grammar, names: list[str] | str
) -> None:
    if isinstance(names, list):
        assert list(hostlist.create(text, grammar)) == names
    else:
        with pytest.raises(ValueError, match=re.escape(names)):
            hostlist.create(text, grammar)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-65536]r[1-65536]",
        "a[x]b[1-65536]c[1-65536]d[1]",
        f"n[{'0' * 999}-9]",
        f"a[x]{'n[1-2]' * 30}",
        "n[1-2]" * 30,
    ],
)
def test_odd_hostlist_of_too_many_names_is_refused_without_trying_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostlist._Names, "add_ranges", _refuse_many(hostlist._Names.add_ranges))
    with pytest.raises(hostlist.TooManyNames):
        hostlist.create(text)


def _refuse_many(add_ranges: Callable[..., None]) -> Callable[..., None]:
    """Return `add_ranges` so that it fails when it is called more than ten times."""
    calls = itertools.count(1)

    def counted(*arguments: Any) -> None:
        assert next(calls) <= 10, "prefixes are tried one by one"
        add_ranges(*arguments)

    return counted


@pytest.mark.parametrize(
    "text", ["", "a,", "n[1-3", "n1-3]", "n[3-1]", "n[a-b]", "@group", "n*", "n 1", "n[1]!n1", "-x"]
)
def test_what_slurm_does_not_accept_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a hostlist"):
        hostlist.expand(text)


def test_folded_names_are_few_words_whatever_their_widths_and_order() -> None:
    assert hostlist.fold(["n10", "n9", "n8", "n08", "n09", "login"]) == "login,n[8-9,08-10]"
    every = hostlist.fold(f"n{number}" for number in range(1, 100_001))
    assert every == "n[1-65536,65537-100000]"


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{1,3}", fullmatch=True), min_size=1, unique=True))
def test_folding_keeps_every_name(names: list[str]) -> None:
    assert sorted(hostlist.expand(hostlist.fold(names))) == sorted(names)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("n[1-999999999]", 131072),
        ("a,n[1-131072]", 131072),
        (f"n[{','.join(['1-99999'] * 2)}]", 131072),
        ("n[1-600]r[1-600]", 10000),
    ],
)
def test_hostlist_of_too_many_names_is_refused_unexpanded(
    text: str, most: int, monkeypatch: Any
) -> None:
    monkeypatch.delattr(hostlist, "create")
    with pytest.raises(hostlist.TooManyNames, match=f"has more than {most} names"):
        hostlist.expand(text)
    with pytest.raises(hostlist.TooManyNames, match="has more than 3 names"):
        hostlist.expand("n[1-4]", 3)


def test_hostlist_with_as_many_names_as_slurm_allows_is_expanded() -> None:
    assert len(hostlist.expand("n[1-65536,65537]")) == 65537
    assert len(hostlist.expand("n[01-50]r[1-200]")) == 10000
