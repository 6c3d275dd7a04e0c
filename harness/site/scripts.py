"""A site's scripts for its rehearsal copy: which ones run, and what stands in for the rest.

Scripts are read, and their syntax is checked, but nothing here runs them.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness import slurm_options
from harness.releases import Release
from harness.scenario import ScriptPath
from harness.site import collect, shell_calls
from harness.site.bundle import Bundle

# Options of slurm.conf whose programs run in the copy, in lower case, and the hosts that run them.
_RUN_ON = {
    "epilog": "nodes",
    "epilogslurmctld": "controllers",
    "healthcheckprogram": "nodes",
    "mailprog": "controllers",
    "prolog": "nodes",
    "prologslurmctld": "controllers",
    "srunepilog": "all",
    "srunprolog": "all",
    "taskepilog": "nodes",
    "taskprolog": "nodes",
    "unkillablestepprogram": "nodes",
}
# Options that name plugins: the kind of plugin, the hosts that load it, and its Lua script, which
# is next to slurm.conf. Users submit on all hosts, because a job can submit another one.
_PLUGINS = {
    "jobsubmitplugins": ("job_submit", "controllers"),
    "clifilterplugins": ("cli_filter", "all"),
}
_CONFIGURATION = "/etc/slurm"
# A larger script is copied, but not examined.
_MOST_EXAMINED = 2**18
_LARGEST = 2**22
_SHELLS = {"bash", "dash", "sh"}
_SYSTEMS = {"/bin", "/sbin", "/usr/bin", "/usr/sbin"}
_LUA_LIBRARIES = {"coroutine", "debug", "io", "math", "os", "package", "string", "table"}
_REQUIRE = re.compile(r"\brequire\s*\(?\s*[\"']([\w.-]+)[\"']")
_PATHS = re.compile(r"(?:/[A-Za-z0-9_.@+-]+){2,}")
_VERBOSE = slurm_options.LOG_LEVELS.index("verbose")
_PATH = TypeAdapter(ScriptPath)
# Seconds to check the syntax of a script.
_PATIENCE = 20


@dataclass(frozen=True, slots=True)
class SiteScripts:
    """A site's scripts for a scenario.

    `scripts` and `stand_ins` are the values of these keys of its cluster. `options` are the options
    of slurm.conf that change; None removes one. `used` are the site's paths of the files in
    `scripts` and `stand_ins`.
    """

    scripts: Mapping[str, Any]
    stand_ins: Mapping[str, str | None]
    options: Mapping[str, Any]
    used: frozenset[str]
    notes: tuple[str, ...]


def find(site: Bundle, options: Mapping[str, Any], release: Release) -> SiteScripts:
    """Return the scripts that the global options of a site's slurm.conf name."""
    search = _Search(site)
    changed: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower() in _RUN_ON and (own := search.programs(name, value)):
            changed[name] = own
        elif name.lower() in _PLUGINS:
            kind, _ = _PLUGINS[name.lower()]
            known = release.plugins.get(kind, frozenset())
            changed[name] = search.plugins(name, str(value), known)
    search.examine()
    if search.scripts and release.logs_scripts:
        logging = _logging(options)
        changed |= logging
        shown = " ".join(f"{name}={value}" for name, value in logging.items())
        search.notes.append(f"added: {shown}: logs name each script and have its output")
    return SiteScripts(
        search.scripts,
        search.stand_ins,
        changed,
        frozenset(search.sources.values()),
        tuple(search.notes),
    )


def _logging(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options with which daemons log the path and the output of each script."""
    flags = next((name for name in options if name.lower() == "debugflags"), "DebugFlags")
    before = [str(options[flags])] if flags in options else []
    logging = {flags: ",".join([*before, "Script"])}
    for daemon in ("SlurmctldDebug", "SlurmdDebug"):
        name = next((name for name in options if name.lower() == daemon.lower()), daemon)
        if slurm_options.log_level(options, daemon) < _VERBOSE:
            logging[name] = "verbose"
    return logging


@dataclass
class _Search:
    """What the search has found so far.

    `sources` maps a host's path to the site's. `unexamined` are files that were added: their path,
    text and hosts, and whether they are for a shell. `calls` are the programs that scripts call,
    each with the place of its first call, and `functions` those of all scripts.
    """

    site: Bundle
    scripts: dict[str, dict[str, str]] = field(default_factory=dict)
    stand_ins: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unexamined: list[tuple[str, str, str, bool]] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)

    def programs(self, name: str, value: Any) -> Any:
        """Add the programs of an option; return its value, None if the bundle has none of them."""
        hosts = _RUN_ON[name.lower()]
        values = [str(item) for item in (value if isinstance(value, list) else [value])]
        added = [
            target
            for pattern in values
            for source, target in self._matching(pattern)
            if self._add(source, target, hosts, f"{name}", is_program=True)
        ]
        if not added:
            return None
        shown = ",".join(values)
        self.notes.append(f"runs: {name}={shown}" + _path_list(added, shown))
        return values if len(values) > 1 else values[0]

    def plugins(self, name: str, value: str, known: frozenset[str]) -> str | None:
        """Add the Lua script of a list of plugins; return those that the copy can load."""
        kind, hosts = _PLUGINS[name.lower()]
        kept = []
        for word in value.split(","):
            plugin = word.strip().removeprefix(f"{kind}/")
            script = f"{_CONFIGURATION}/{kind}.lua"
            source = f"{self.site.site_directory}/{kind}.lua"
            if plugin not in known:
                self.notes.append(f"left out: {name}={word}: the hosts have no such plugin")
            elif plugin != "lua":
                kept.append(word)
            elif not self._add(source, script, hosts, name):
                self.notes.append(f"left out: {name}={word}: there is no {source}")
            elif missing := self._missing_modules(source):
                self.notes += [
                    f"left out: {name}={word}: {source}:{line}: the hosts have no module {module}; "
                    "the cluster's `packages` can add one"
                    for module, line in missing.items()
                ]
            else:
                kept.append(word)
                self.notes.append(f"runs: {name}={word}" + _path_list([script], word))
        return ",".join(kept) or None

    def _matching(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield the site's files that a path or pattern of slurm.conf names, and their new paths.

        The daemons look for a relative path next to slurm.conf.
        """
        words = pattern.split()
        if not words:
            return
        parent = "" if words[0].startswith("/") else f"{self.site.site_directory}/"
        parts = PurePosixPath(parent + words[0]).parts
        for source in sorted(self.site.paths):
            names = PurePosixPath(source).parts
            if len(names) == len(parts) and all(map(_matches, names, parts)):
                inside = source.removeprefix(parent)
                yield source, f"{_CONFIGURATION}/{inside}" if parent else source

    def _add(
        self, source: str, target: str, hosts: str, named_by: str, *, is_program: bool = False
    ) -> bool:
        """Add a file, and all that it needs; return whether the bundle has it."""
        if source not in self.site.paths:
            return False
        if target in self.scripts or target in self.stand_ins:
            if target in self.scripts and self.scripts[target]["hosts"] != hosts:
                self.scripts[target]["hosts"] = "all"
            return True
        text = self.site.text(source)
        mode = "0755" if self.site.modes.get(source, 0o755) & 0o111 else "0644"
        if problem := _unusable(target, text):
            self.notes.append(f"left out: {source}: {problem}")
            return False
        self.sources[target] = source
        if is_program and mode == "0644":
            self.notes.append(f"finding: {source}: {named_by} names it, but it is not executable")
        interpreter = _interpreter(text)
        if interpreter and not self._add_interpreter(source, interpreter):
            self.stand_ins[target] = None
            why = f"the hosts have no {interpreter}, which runs it"
            self.notes.append(f"replaced: {source}: {why}; a program that does nothing is used")
            return True
        self.scripts[target] = {"text": text, "hosts": hosts, "mode": mode}
        self._note_contents(source, text)
        self.unexamined.append((source, text, hosts, _is_shell(source, text, is_program)))
        return True

    def _add_interpreter(self, source: str, interpreter: str) -> bool:
        """Return whether the hosts have an interpreter; add a link if it is at a different path."""
        if interpreter.startswith("/") and interpreter not in self.site.paths:
            if PurePosixPath(interpreter).name not in _program_paths():
                return False
            self._add_stand_in(interpreter, f"{source}:1")
            return True
        return interpreter in self.site.paths or interpreter in _program_paths()

    def _note_contents(self, source: str, text: str) -> None:
        """Add notes on how a script differs from the site's."""
        if "\ufffd" in text:
            self.notes.append(f"replaced: {source}: characters that are not UTF-8")
        if count := self.site.replaced.get(source):
            self.notes.append(f"replaced: {source}: {count} secrets, by harness-collect")

    def examine(self) -> None:
        """Check the syntax of all scripts, and add what they name and call."""
        while self.unexamined:
            source, text, hosts, is_shell = self.unexamined.pop()
            if len(text) <= _MOST_EXAMINED:
                self._examine(source, text, hosts, is_shell=is_shell)
            else:
                self.notes.append(f"not examined: {source}: more than {_MOST_EXAMINED >> 10} KiB")
        for program, place in self.calls.items():
            if program not in self.scripts and program not in self.functions:
                self._add_stand_in(program, place)

    def _examine(self, source: str, text: str, hosts: str, *, is_shell: bool) -> None:
        language = "bash" if is_shell else "lua" if source.endswith(".lua") else ""
        if problem := _syntax_error(language, text):
            line, message = problem
            self.notes.append(f"finding: {source}:{line}: {message}")
        for path in dict.fromkeys(_PATHS.findall(text)):
            if path in self.site.paths and path not in self.scripts and not _is_system_file(path):
                self._add(path, path, hosts, source)
                if path in self.scripts:
                    self.notes.append(f"copied: {path}: named in {source}")
        if is_shell:
            self.functions |= shell_calls.functions(text)
            for program, line in shell_calls.calls(text).items():
                self.calls.setdefault(program, f"{source}:{line}")

    def _add_stand_in(self, program: str, place: str) -> None:
        """Add a stand-in for a program, unless the hosts have it at the same path.

        If they have it at a different path, that program is the stand-in.
        """
        name = PurePosixPath(program).name
        paths = _program_paths().get(name, ())
        path = program if program.startswith("/") else f"/usr/bin/{program}"
        if path in self.stand_ins or program in paths or (paths and not program.startswith("/")):
            return
        try:
            _PATH.validate_python(path)
        except ValidationError:
            self.notes.append(f"finding: {place} calls {program}, which the hosts may lack")
            return
        self.stand_ins[path] = paths[0] if paths else None
        if paths and str(PurePosixPath(path).parent) in _SYSTEMS:
            return  # systems differ in where a program is
        what = f"the hosts' {paths[0]}" if paths else "a program that only logs the call"
        self.notes.append(f"stand-in: {path}: {what}; called at {place}")

    def _missing_modules(self, source: str) -> dict[str, int]:
        """Return the modules that a Lua script requires and the hosts lack, with their lines."""
        missing: dict[str, int] = {}
        named: dict[str, list[str]] = {}
        for path in sorted(self.site.paths):
            named.setdefault(PurePosixPath(path).name, []).append(path)
        for number, line in enumerate(self.site.text(source).splitlines(), 1):
            for module in _REQUIRE.findall(line.partition("--")[0]):
                file = f"/{module.replace('.', '/')}.lua"
                own = [
                    path for path in named.get(file.rpartition("/")[2], ()) if path.endswith(file)
                ]
                for path in own:
                    self._add(path, path, "all", source)
                if not own and module not in _LUA_LIBRARIES:
                    missing.setdefault(module, number)
        return missing


def _path_list(paths: list[str], value: str) -> str:
    return "" if paths == [value] else f": {', '.join(paths)}"


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern of glob(7) matches the name of a file or directory."""
    return fnmatch.fnmatchcase(name, pattern) and (name[0] != "." or pattern[0] == ".")


def _is_system_file(path: str) -> bool:
    """Return whether a file of a bundle belongs to the site's operating system."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in collect.SYSTEM_FILES)


def _unusable(target: str, text: str) -> str:
    """Return why a file cannot be a script of the copy; "" if it can."""
    if len(text) > _LARGEST:
        return f"more than {_LARGEST >> 20} MiB"
    if "%secret:" in text:
        return "has a placeholder for a secret of the harness (%secret:)"
    try:
        _PATH.validate_python(target)
    except ValidationError as error:
        reason = error.errors()[0]
        return str(reason.get("ctx", {}).get("error", "its path has unusual characters"))
    return ""


def _interpreter(text: str) -> str:
    r"""Return the interpreter of a script: a path, a name that env(1) looks up, or "".

    >>> _interpreter("#!/usr/bin/env -S python3 -u\n"), _interpreter("#!/bin/sh -e\n")
    ('python3', '/bin/sh')
    """
    first = text.partition("\n")[0]
    words = first[2:].split() if first.startswith("#!") else []
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if word[0] != "-" and "=" not in word]
    return words[0] if words else ""


def _is_shell(source: str, text: str, is_program: bool) -> bool:
    name = PurePosixPath(_interpreter(text)).name
    return name in _SHELLS or (not name and (is_program or source.endswith((".sh", ".bash"))))


@cache
def _program_paths() -> dict[str, tuple[str, ...]]:
    """Return the programs that the hosts of all releases have: name -> paths."""
    places: dict[str, tuple[str, ...]] = {}
    for path in Path(__file__).with_name("programs.txt").read_text().split():
        name = PurePosixPath(path).name
        places[name] = (*places.get(name, ()), path)
    return places


def _syntax_error(language: str, text: str) -> tuple[int, str] | None:
    """Return the line and message of a script's first syntax error.

    None if there is none, or if this machine cannot check the language. The checkers read the
    script and do not run it.
    """
    commands = {"bash": ["bash", "--norc", "-n"], "lua": ["luac", "-p", "-"]}
    if language not in commands or not shutil.which(commands[language][0]):
        return None
    try:
        done = subprocess.run(
            commands[language],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, f"its syntax could not be checked: {error}"
    match = re.search(r"(?:line |stdin:)(\d+): (.*)", done.stderr)
    return (int(match[1]), match[2]) if match and done.returncode else None
