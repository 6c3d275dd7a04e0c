"""Find the programs that a shell script calls, without running it. Pure: no I/O.

It knows the shell's grammar well enough for prologs and epilogs, but not all of it: commands whose
name is in a variable, or in a string for `eval`, are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Words after which a command follows; the last of these are programs.
_RESERVED = "! { ( if then elif else while until do time exec command builtin"
_LAUNCHERS = "nohup setsid sudo env"
# What the shell does itself: bash(1), reserved words and builtins.
_SHELL_WORDS = """
    . : [ [[ ]] } ) alias bg bind break builtin caller case cd compgen complete continue coproc
    declare dirs disown done echo enable esac eval exit export false fc fg fi for function getopts
    hash help history in jobs kill let local logout mapfile popd printf pushd pwd read readarray
    readonly return select set shift shopt source suspend test times trap true type typeset ulimit
    umask unalias unset wait
"""
_BEFORE_COMMANDS = {*_RESERVED.split(), *_LAUNCHERS.split()}
_BUILTINS = {*_RESERVED.split(), *_SHELL_WORDS.split()}
_TOKEN = re.compile(
    r"""
      (?P<comment> (?<![^\s;&|()]) \#[^\n]* )
    | (?P<blank> [ \t\r]+ | \\\n )
    | (?P<skipped> \$?\(\([^\n]{0,300}?\)\) | (?<!\S)\[\[\s[^\n]{0,500}?\s\]\]
        | \w+\+?=\([^)]{0,5000}\) | &?[<>]+&?(?:\s*[^\s;&|()]{1,300})? )
    | (?P<separator> ;;&? | ;& | [;&|\n()`] )
    | (?P<word> (?: '[^']*' | "(?:\\.|[^"\\])*" | \\. | \$\{[^}]{0,500}\} | [^\s;&|()`'"\\<>] )+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")
_FUNCTION = re.compile(
    r"(?m)^[ \t]*(?:function[ \t]+([\w:.-]{1,99})|([\w:.-]{1,99})[ \t]*\([ \t]*\))"
)
_SUBSTITUTION = re.compile(r"\$\(([^()\n]{1,500})\)")
_ASSIGNMENT = re.compile(r"\w+(\[[^\]]*\])?\+?=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*|(/[A-Za-z0-9_.@+-]+){2,}")


def calls(text: str) -> dict[str, int]:
    r"""Return the programs that a script of sh or bash calls, each with the line of its first call.

    They are names, such as nvidia-smi, or absolute paths; files that it reads with "." are included
    if their path is absolute. Builtins and the script's own functions are left out.

    >>> calls("#!/bin/sh\nif nvidia-smi -L; then . /etc/site.sh; fi\necho $(/opt/bin/x)\n")
    {'nvidia-smi': 2, '/etc/site.sh': 2, '/opt/bin/x': 3}
    """
    own = functions(text)
    line_of: dict[str, int] = {}
    for word, line in _commands(_without_here_documents(text), 1):
        if word not in own and word not in _BUILTINS and _NAME.fullmatch(word):
            line_of.setdefault(word, line)
    return line_of


def functions(text: str) -> set[str]:
    """Return the functions that a script of sh or bash defines."""
    return {name for names in _FUNCTION.findall(text) for name in names if name}


def _commands(text: str, line: int) -> Iterator[tuple[str, int]]:
    """Yield the first word of each simple command, and the files that "." reads."""
    expects_command, in_pattern, reads_file, cases = True, False, False, 0
    for match in _TOKEN.finditer(text):
        part, kind = match[0], match.lastgroup
        if kind == "separator":
            in_pattern = (in_pattern and part != ")") or (cases > 0 and part.startswith(";;"))
            expects_command, reads_file = True, False
        elif kind == "word":
            for substituted in _SUBSTITUTION.findall(part):
                yield from _commands(substituted, line)
            word = part.strip("'\"")
            if word == "esac" and expects_command:
                in_pattern, cases = False, cases - 1
            elif word == "in" and cases:
                in_pattern = True
            elif word == "{":
                expects_command = True
            elif reads_file:
                reads_file = False
                if word.startswith("/"):
                    yield word, line
            elif expects_command and not in_pattern:
                yield word, line
                cases += word == "case"
                reads_file = word in {".", "source"}
                expects_command = word in _BEFORE_COMMANDS or bool(_ASSIGNMENT.match(word))
        line += part.count("\n")


def _without_here_documents(text: str) -> str:
    """Return a script with empty lines in place of its here-documents."""
    kept, ends = [], list[tuple[str, bool]]()
    for line in text.split("\n"):
        if ends:
            end, indented = ends[0]
            if (line.lstrip("\t") if indented else line) == end:
                ends.pop(0)
            kept.append("")
            continue
        kept.append(_HERE_DOCUMENT.sub("", line))
        ends += [(match[3], bool(match[1])) for match in _HERE_DOCUMENT.finditer(line)]
    return "\n".join(kept)
