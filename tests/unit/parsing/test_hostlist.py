from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.parsing import hostlist


def test_names_keep_the_order_of_the_expression() -> None:
    assert hostlist.expand("z,c[1-2],a07") == ("z", "c1", "c2", "a07")


def test_leading_zeros_stay() -> None:
    assert hostlist.expand("n[08-11]") == ("n08", "n09", "n10", "n11")


@pytest.mark.parametrize(
    "text", ["", "a,", "n[1-3", "n1-3]", "n[3-1]", "n[a-b]", "@group", "n*", "n 1", "n[1]!n1", "-x"]
)
def test_what_slurm_does_not_accept_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a hostlist"):
        hostlist.expand(text)


def test_folded_names_are_few_words_whatever_their_widths_and_order() -> None:
    assert hostlist.fold(["n10", "n9", "n8", "n08", "n09", "login"]) == "login,n[8-9,08-10]"
    assert hostlist.fold(f"n{number}" for number in range(1, 100_001)) == "n[1-100000]"


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
    monkeypatch.setattr(hostlist, "NodeSet", lambda part, resolver: [part])
    with pytest.raises(hostlist.TooManyNames, match=f"has more than {most} names"):
        hostlist.expand(text)
    with pytest.raises(hostlist.TooManyNames, match="has more than 3 names"):
        hostlist.expand("n[1-4]", 3)


def test_hostlist_with_as_many_names_as_slurm_allows_is_expanded() -> None:
    assert len(hostlist.expand("n[1-65537]")) == 65537
    assert len(hostlist.expand("n[01-50]r[1-200]")) == 10000
