"""Change configuration files in one place, as administrators do, by mistake or on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from string import ascii_letters

from harness import releases

# Returns the text of a file with one change, or unchanged if there is nothing that it can change.
Mutation = Callable[[Random, str, str, str], str]

_PAIR = re.compile(r'([\w.]+)([ \t]*[-+*/]?=[ \t]*)("[^"\n]*"|[^\s"]\S*)', re.ASCII)
_RANGE = re.compile(r"\d+|[][,-]")
_NODES = re.compile("nodes|nodename|nodeset|switches|downnodes|suspendexcnodes", re.IGNORECASE)
_NUMBERS = (
    *("0", "1", "2", "-1", "-2", "+5", "10", "007", "0x10", "1.5", "10K", "10M", "1e3", "65535"),
    *("65536", "2147483648", "4294967294", "4294967295", "4294967296", "18446744073709551616"),
)
_TEXTS = (
    *('""', "none", "NONE", "yes", "no", "on", "TRUE", "INFINITE", "unlimited", "ALL", "DEFAULT"),
    *("odd", "odd/none", "a,b", ",", "a=1", "a:1", "/opt/x", "x/y", "/", "n1", "n[1-2]", "n[1"),
    *("%c", "7-0", "1:00:00", "30 min", "5s", "10GB", "50%", '"a b"', "\xfc"),
)


def mutate(random: Random, file: str, text: str, release: str) -> tuple[str, str]:
    """Return the name of a mutation, and the text of `file` after it."""
    for name in random.choices(list(MUTATIONS), _WEIGHTS, k=100):
        mutated = MUTATIONS[name](random, file, text, release)
        if mutated != text:
            return name, mutated
    return "nothing", text  # a file of another kind, such as plugstack.conf, without a line


def _pairs(text: str) -> list[re.Match[str]]:
    """Return the options with their values: groups 1 and 3."""
    return [
        pair
        for pair in _PAIR.finditer(text)
        if "#" not in text[text.rfind("\n", 0, pair.start()) + 1 : pair.start()]
    ]


def _in_pair(
    part: int, change: Callable[[Random, str], str], chosen: re.Pattern[str] | None = None
) -> Mutation:
    """Return the mutation that changes an option (1), the sign after it (2), or its value (3).

    `chosen`: only of options with these names.
    """

    def mutation(random: Random, _file: str, text: str, _release: str) -> str:
        pairs = [pair for pair in _pairs(text) if not chosen or chosen.fullmatch(pair[1])]
        if not pairs:
            return text
        pair = random.choice(pairs)
        return text[: pair.start(part)] + change(random, pair[part]) + text[pair.end(part) :]

    return mutation


def _in_lines(change: Callable[[Random, list[str], int], object]) -> Mutation:
    """Return the mutation that changes a list of lines in place, at a line that is no comment."""

    def mutation(random: Random, _file: str, text: str, _release: str) -> str:
        lines = text.splitlines(keepends=True)
        indexes = [index for index, line in enumerate(lines) if line.partition("#")[0].strip()]
        if indexes:
            change(random, lines, random.choice(indexes))
        return "".join(lines)

    return mutation


def _typo(random: Random, word: str) -> str:
    if not word:
        return random.choice(ascii_letters)
    at = random.randrange(len(word))
    before, character, after = word[:at], word[at], word[at + 1 :]
    return random.choice(
        [
            before + after,
            before + character * 2 + after,
            before + after[:1] + character + after[1:],
            before + random.choice(ascii_letters + "-_ ") + after,
            before + character.swapcase() + after,
            word + random.choice("sd"),
        ]
    )


def _another_form(random: Random, value: str) -> str:
    forms = ["{}K", "{}s", "{}MB", "{}min", "{}%", "-{}", "+{}", "0{}", "{0},{0}", "{},", ",{}"]
    forms += [
        '"{}"',
        "'{}'",
        "<{}>",
        '"{}',
        "{} ;",
        "{};",
        "{0} {0}",
        "{0}:{0}",
        "{0}-{0}",
        "{}\xa0",
    ]
    return random.choice([*forms, *_NUMBERS, *_TEXTS]).format(value)


def _another_value(random: Random, _file: str, text: str, _release: str) -> str:
    pairs = _pairs(text)
    if len(pairs) < 2:
        return text
    one, other = random.sample(pairs, 2)
    return text[: one.start(3)] + other[3] + text[one.end(3) :]


def _range(random: Random, value: str) -> str:
    """Change a number, a bracket, a comma or a hyphen of a list of hosts."""
    parts = list(_RANGE.finditer(value))
    if not parts:
        return value + random.choice(["[1-2]", ",", "1", "["])
    part = random.choice(parts)
    new = ["", part[0] * 2, random.choice("[]-,.:")]
    if part[0].isdigit():
        number = int(part[0])
        new += [str(number + 1), str(max(0, number - 1)), str(number * 10), f"0{number}", "999"]
    return value[: part.start()] + random.choice(new) + value[part.end() :]


def _missing_node(random: Random, value: str) -> str:
    return random.choice(["missing", f"{value},missing", f"missing[1-2],{value}", f"{value}9"])


def _another_family(random: Random, _file: str, text: str, release: str) -> str:
    pairs = [pair for pair in _pairs(text) if re.fullmatch(r"\w+/\w+", pair[3])]
    if not pairs:
        return text
    pair = random.choice(pairs)
    families = releases.get(release).plugins
    family = random.choice(sorted(families))
    known = sorted(families[family]) or ["none"]
    new = [random.choice(known), f"{family}/{random.choice(known)}"]
    new += [f"{family}/{pair[3].partition('/')[2]}", f"{pair[3].partition('/')[0]}/{new[0]}"]
    return text[: pair.start(3)] + random.choice(new) + text[pair.end(3) :]


def _comment(random: Random, lines: list[str], index: int) -> None:
    body = lines[index].rstrip("\n")
    forms = ["#{}", "{} # text", "{}#text", "{} \\# text", "{} ; text", "// {}", "{} text", " # {}"]
    lines[index] = random.choice([*forms, "# text \\\n{}"]).format(body) + "\n"


def _continuation(random: Random, lines: list[str], index: int) -> None:
    body = lines[index].rstrip("\n")
    at = random.choice([len(body), *(blank.start() for blank in re.finditer(r"\s|=|,", body))])
    lines[index] = (
        body[:at] + random.choice([" \\\n", "\\\n", "\\ \n", "\\\\\n"]) + body[at:] + "\n"
    )


def _padding(random: Random, lines: list[str], index: int) -> None:
    body = lines[index].rstrip("\n")
    forms = ["  {}", "\t{}", "{}  ", "{}\t", "{}\r", "\xa0{}", "{}\xa0", "\n{}\n", "\xef\xbb\xbf{}"]
    lines[index] = random.choice(forms).format(body) + "\n"


def _delete(_random: Random, lines: list[str], index: int) -> None:
    del lines[index]


def _duplicate(_random: Random, lines: list[str], index: int) -> None:
    lines.insert(index, lines[index].rstrip("\n") + "\n")


def _move(random: Random, lines: list[str], index: int) -> None:
    line = lines.pop(index).rstrip("\n") + "\n"
    lines.insert(random.randint(0, len(lines)), line)


def _join(_random: Random, lines: list[str], index: int) -> None:
    lines[index] = lines[index].rstrip("\n") + " "


def _without_end(_random: Random, _file: str, text: str, _release: str) -> str:
    return text.rstrip("\n")


def _option_of_another_release(random: Random, file: str, text: str, _release: str) -> str:
    return _plausible_value(random, file, text, random.choice(releases.KNOWN))


def _plausible_value(random: Random, file: str, text: str, release: str) -> str:
    """Set an option of a release to a value that its type and its name suggest."""
    options = releases.get(release).options
    settable = {
        section: [option for option in known.values() if option.type != "array"]
        for section, known in options.items()
        if section.split()[0] == file
    }
    sections = [section for section, known in settable.items() if known]
    if not sections:
        return text
    section = random.choice([sections[0], *sections])
    option = random.choice(settable[section])
    setting = f"{option.name}={_value(random, option, release)}"
    lines = text.splitlines(keepends=True)
    key = section.partition(" ")[2] or option.name
    begins = re.compile(rf"\s*{key}\s*=", re.IGNORECASE)
    present = [index for index, line in enumerate(lines) if begins.match(line)]
    if not present and " " in section:
        return text
    if not present:
        lines.insert(random.randint(0, len(lines)), f"{setting}\n")
        return "".join(lines)
    index = random.choice(present)
    body = lines[index].rstrip("\n")
    if " " in section:
        own = re.compile(rf"\b{option.name}\s*=\s*\S*", re.IGNORECASE)
        in_its_place = own.sub(lambda _: setting, body)
        lines[index] = (in_its_place if own.search(body) else f"{body} {setting}") + "\n"
    else:
        lines[index] = f"{setting}\n"
    return "".join(lines)


def _value(random: Random, option: releases.Option, release: str) -> str:
    known = releases.get(release)
    if option.type == "boolean":
        return random.choice(["yes", "no", "1", "0", "up", "TRUE", "on", "2", "maybe"])
    if option.type != "string":
        return random.choice([*_NUMBERS, "INFINITE", "unlimited", "yes", '""', "ten"])
    values = list(random.sample([*_NUMBERS, *_TEXTS], 3))
    name = option.name.lower()
    if (words := known.words.get(name)) and words.known:
        two = random.sample(sorted(words.known), min(2, len(words.known)))
        numbered = [word + random.choice(_NUMBERS) if word[-1] == "=" else word for word in two]
        values += [*numbered, numbered[0].upper(), ",".join(numbered), " ,".join(numbered)] * 2
    for family, plugins in sorted(known.plugins.items()):
        if name.startswith(family.replace("_", "")):
            values += [f"{family}/{plugin}" for plugin in sorted(plugins)]
            values += random.sample(sorted(plugins), min(1, len(plugins)))
    return random.choice(values)


# Mutations by name, with how often they are chosen.
_ALL: tuple[tuple[str, int, Mutation], ...] = (
    ("a plausible value", 12, _plausible_value),
    ("an option of another release", 3, _option_of_another_release),
    ("a typo in an option", 2, _in_pair(1, _typo)),
    ("a typo in a value", 4, _in_pair(3, _typo)),
    ("a value of another option", 3, _another_value),
    ("another form of a value", 6, _in_pair(3, _another_form)),
    ("a plugin of another family", 3, _another_family),
    ("another range of nodes", 4, _in_pair(3, _range, _NODES)),
    ("a missing node", 2, _in_pair(3, _missing_node, _NODES)),
    (
        "another sign",
        1,
        _in_pair(2, lambda random, _: random.choice([" = ", "+=", ":", "==", " "])),
    ),
    ("a deleted line", 3, _in_lines(_delete)),
    ("a duplicated line", 2, _in_lines(_duplicate)),
    ("a moved line", 2, _in_lines(_move)),
    ("two lines in one", 1, _in_lines(_join)),
    ("a comment", 2, _in_lines(_comment)),
    ("a continued line", 2, _in_lines(_continuation)),
    ("padding", 2, _in_lines(_padding)),
    ("no end of line", 1, _without_end),
)
MUTATIONS = {name: mutation for name, _, mutation in _ALL}
_WEIGHTS = [weight for _, weight, _ in _ALL]
