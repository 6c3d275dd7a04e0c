"""How faithful a rehearsal copy is: what it has unchanged, in a different form, or not at all.

The options of both are compared as `harness diff` does, so that a report shows what the copy really
has, whatever its importer intended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.slurmconf import diff
from harness.slurmconf.check.nodes import names_of
from harness.slurmconf.check.parsed_file import Configuration, Source

SAME, EMULATED, LEFT_OUT, ADDED = "the same", "emulated", "left out", "added"
_ADDRESSES = {"bcastaddr", "nodeaddr", "nodehostname", "port"}
_HEADINGS = {
    LEFT_OUT: "Left out: a verdict on the copy says nothing about these",
    EMULATED: "Emulated: the copy has these in a different form",
    ADDED: "Added: only the copy has these",
    SAME: "The same",
}


@dataclass(frozen=True, slots=True)
class Replaced:
    """Something that a site has and its copy does not, or in a different form.

    `option` is named as `harness diff` does: `Prolog`, `NodeName c[1-4] State`; it is empty for a
    whole file.
    """

    file: str
    option: str
    value: object
    why: str

    def __str__(self) -> str:
        file = "" if self.file == "slurm.conf" else self.file
        value = ",".join(map(str, self.value)) if isinstance(self.value, list) else self.value
        option = f"{self.option}={value}" if self.option else ""
        return f"{': '.join(filter(None, [file, option]))}: {self.why}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An option or object of the site or its copy; a value is None where it is not set.

    `where` is a file, or a kind of object such as "account". `state` is one of the constants of
    this module.
    """

    where: str
    name: str
    site: str | None
    copy: str | None
    state: str
    why: str


def compare(
    site: Configuration, copy: Configuration, release: str, replaced: Iterable[Replaced]
) -> Iterator[Entry]:
    """Yield an entry for each option of both configurations."""
    reasons = {_key(item.file, item.option): item.why for item in replaced}
    changes = [*diff.compare(site, copy, release, ignored=_ADDRESSES)]
    rows = [row for side in (site, copy) for row in side.files["slurm.conf"].rows("nodename")]
    if any(_ADDRESSES & row.own.keys() for row in rows):
        why = "all nodes share a few hosts"
        yield Entry("slurm.conf", "addresses and ports of nodes", None, None, EMULATED, why)
    for change in changes:
        state = ADDED if change.before is None else LEFT_OUT if change.after is None else EMULATED
        keys = (_key(change.file, change.option), _key(change.file, ""))
        why = next((reasons[key] for key in keys if key in reasons), "the harness has its own")
        before, after = (_shown(change.option, value) for value in (change.before, change.after))
        yield Entry(change.file, change.option, before, after, state, why)
    for source in site:
        yield from _unchanged(source, [change for change in changes if change.file == source.kind])


def scripts(notes: Iterable[str]) -> Iterator[Entry]:
    """Yield an entry for each note on the site's scripts, such as "runs: Prolog=PATH: PATHS"."""
    states = {"runs": SAME, "copied": SAME, "left out": LEFT_OUT, "added": ADDED}
    for note in notes:
        word, what, why = [*note.split(": ", 2), ""][:3]
        if word != "finding":
            yield Entry("script", what, None, None, states.get(word, EMULATED), why)


def objects(
    site: Mapping[str, Mapping[str, Any]],
    copy: Mapping[str, Mapping[str, Any]],
    left_out: Iterable[str],
    emulated: Iterable[str],
) -> Iterator[Entry]:
    """Yield an entry for each account, QOS, user or other object, by kind.

    `left_out` and `emulated` are notes such as "user alice: unknown".
    """
    notes = {(kind, name): why for kind, name, why in map(_note, emulated)}
    for kind, known in copy.items():
        for name, facts in known.items():
            text = ", ".join(f"{key}: {value}" for key, value in facts.items())
            is_on_site = name in site.get(kind, {})
            why = notes.get((kind, name), "")
            state = EMULATED if why else SAME if is_on_site else ADDED
            yield Entry(kind, name, text if is_on_site else None, text, state, why)
    for note in left_out:
        what, _, why = note.partition(": ")
        yield Entry("site", what, None, None, LEFT_OUT, why)


def _note(text: str) -> tuple[str, str, str]:
    """Return the kind and the name of an object, and what a note says about it."""
    what, _, why = text.partition(": ")
    kind, _, name = what.partition(" ")
    return kind, name, why


def _unchanged(source: Source, changes: Sequence[diff.Change]) -> Iterator[Entry]:
    """Yield the options of a file of the site that do not differ, one entry for each line."""
    changed = {change.option.lower() for change in changes}
    for key, setting in source.settings.items():
        if key not in changed:
            value = _shown(setting.name, setting.value)
            yield Entry(source.kind, setting.name, value, value, SAME, "")
    changed_rows = [
        (first.lower(), _names(names), option.lower())
        for change in changes
        if change.option.count(" ") >= 2
        for first, names, option in [change.option.split(" ", 2)]
    ]
    for key in source.sections:
        for row in source.rows(key):
            names = _names(row.first.value)
            changed_options = {
                option for first, named, option in changed_rows if first == key and named & names
            }
            kept = [
                option
                for name, option in row.all.items()
                if name not in changed_options | changed | _ADDRESSES
            ]
            if "removed" not in changed_options and kept:
                text = " ".join(f"{option.name}={option.value}" for option in kept)
                name = f"{row.first.name} {row.first.value}"
                yield Entry(source.kind, name, text, text, SAME, "")


def _shown(option: str, value: str | None) -> str | None:
    """Return an option's value, unless it is a password."""
    return "a password" if value and option.lower().endswith("pass") else value


def _names(value: str) -> set[str]:
    return set(names_of(value) or (value,))


def _key(file: str, option: str) -> tuple[str, str, str]:
    """Return what identifies an option, whatever nodes or partitions it is set for."""
    words = option.lower().split(" ")
    return file, words[0], words[-1]


def markdown(title: str, entries: Sequence[Entry]) -> str:
    """Return a report: first what a verdict on the copy does not cover."""
    counts = Counter(entry.state for entry in entries)
    lines = [
        f"# {title}: fidelity",
        "",
        "; ".join(f"{state}: {counts[state]}" for state in _HEADINGS) + ".",
    ]
    for state, heading in _HEADINGS.items():
        if chosen := [entry for entry in entries if entry.state == state]:
            lines += ["", f"## {heading}", "", *_table(chosen, state)]
    return "\n".join([*lines, ""])


def _table(entries: Sequence[Entry], state: str) -> Iterator[str]:
    columns = {
        SAME: ("where", "name", "site"),
        ADDED: ("where", "name", "copy"),
        LEFT_OUT: ("where", "name", "site", "why"),
        EMULATED: ("where", "name", "site", "copy", "why"),
    }[state]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for entry in entries:
        cells = (str(getattr(entry, column) or "") for column in columns)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
