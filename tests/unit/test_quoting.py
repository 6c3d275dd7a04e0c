"""A scenario's texts stay texts, whatever they contain, in every language that is rendered."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness import install_script, render, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import ScenarioError
from harness.parsing import conf
from harness.plan import make_plan
from harness.providers import packet_filters

# As a scenario accepts them: no control characters.
TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
    | st.sampled_from("'\"\\`$%#;&|{}\t *")
)
HOSTILE = "slurm'; touch evil; echo $(touch evil)`touch evil` \\"


def scenario_of(conf: dict[str, Any] | None = None, **accounting: Any) -> scenario.Scenario:
    """Return a scenario as code may create it: the rules of scenario files do not apply here."""
    cluster = {"controller": "ctl", "nodes": [{"name": "n1"}], "options": conf or {}}
    return scenario.Scenario.model_validate(
        {"clusters": {"c": cluster}, "accounting": {"host": "ctl", **accounting}}
    )


def bash(script: str, *arguments: str, cwd: Path, programs: Path | None = None) -> list[str]:
    """Run a script; return the zero-separated texts that it prints."""
    path = f"{programs}:{os.environ['PATH']}" if programs else os.environ["PATH"]
    command = ["bash", "-c", script, "bash", *arguments]
    completed = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return completed.stdout.split("\0")[:-1]


@pytest.mark.parametrize("user", [HOSTILE, "a b", "$USER", "-rf"])
def test_install_script_passes_scenario_values_to_its_shells_unchanged(
    tmp_path: Path, user: str
) -> None:
    plan = make_plan("c", scenario_of({"SlurmUser": user}), OWN_MACHINES)
    tree = render.render(plan)
    tree["ctl"] = (*tree["ctl"], render.RenderedFile("/etc/a file", "", owner=user, group=user))
    script = install_script.script(plan, tree)
    puts = "\n".join(line for line in script.splitlines() if line.startswith("put "))
    sent = bash("""put() { printf '%s\\0' "$2"; }\n""" + puts, cwd=tmp_path)
    assert len(sent) == 2
    quiet = "\n".join(
        f"{name}() {{ :; }}"
        for name in ("systemctl", "chmod", "systemd-tmpfiles", "systemd-sysusers")
    )
    owners = bash(f"""{quiet}\nchown() {{ printf '%s\\0' "$@"; }}\n{sent[0]}""", cwd=tmp_path)
    assert owners[-2:] == [f"{user}:{user}", "/etc/a file"]
    assert not list(tmp_path.iterdir())


def test_accounting_script_passes_scenario_values_to_sacctmgr_unchanged(tmp_path: Path) -> None:
    name = "$(touch evil)'\"`touch evil`"
    limit = f"gres/{name}=4"
    read = scenario_of(
        {"SlurmUser": HOSTILE},
        accounts={"physics": {"options": {"GrpTRES": limit, "Description": f'"{HOSTILE} "'}}},
        slurm_user_accounts=["physics"],
    )
    plan = make_plan("c", read, OWN_MACHINES)
    script = next(
        file.text
        for file in render.render(plan)["ctl"]
        if file.path == "/usr/local/sbin/slurm-accounting-objects"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tres").write_text(f"gres|{name}\n")
    fake = f"""#!/bin/sh
case "$*" in
    *"show tres"*) cat {tmp_path}/bin/tres ;;
    *show*) ;;
    *) printf '%s\\0' "$@" >> {tmp_path}/bin/said ;;
esac
"""
    (tmp_path / "bin" / "sacctmgr").write_text(fake)
    (tmp_path / "bin" / "sacctmgr").chmod(0o755)
    for part in ("", "late"):
        bash(script, part, cwd=tmp_path, programs=tmp_path / "bin")
    arguments = (tmp_path / "bin" / "said").read_text().split("\0")
    assert {f"GrpTRES={limit}", f'Description="{HOSTILE} "', HOSTILE} <= {*arguments}
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@given(TEXTS, TEXTS)
@example(HOSTILE, "c[1-2]")
@example('"; import os #', "\U0001f600")
def test_power_program_gets_its_values_unchanged(known_hosts: str, nodes: str) -> None:
    facts = {
        "levels": {nodes: "power"},
        "port": 1,
        "log": known_hosts,
        "patience": {"resume": 60, "suspend": 30},
    }
    text = render.template("/usr/local/sbin/slurm-power", known_hosts=known_hosts, **facts)
    values = {
        statement.targets[0].id: statement.value
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    assert ast.literal_eval(values["KNOWN_HOSTS"]) == known_hosts
    assert ast.literal_eval(values["LEVELS"]) == {nodes: "power"}
    assert ast.literal_eval(values["LOG"].args[0]) == known_hosts  # type: ignore[attr-defined]


@given(TEXTS)
@example(HOSTILE)
@example("\\' OR 1; --")
def test_sql_gets_texts_and_names_unchanged(text: str) -> None:
    statements = render.template("/etc/mysql/slurm.sql", grants={text: (text, "%", text)})
    literal = r"'(?:[^'\\]|''|\\.)*'"
    altered = re.search(
        rf"^ALTER USER ({literal})@'%' IDENTIFIED BY ({literal});$", statements, re.MULTILINE
    )
    assert altered
    for found in altered.groups():
        assert re.sub(r"''|\\(.)", lambda match: match[1] or "'", found[1:-1]) == text
    name = re.search(
        r"^CREATE DATABASE IF NOT EXISTS (\w+|`(?:[^`]|``)*`);$", statements, re.MULTILINE
    )
    assert name
    assert name[1] == text or name[1][1:-1].replace("``", "`") == text


@given(TEXTS)
@example('a" b')
def test_unit_gets_its_flags_unchanged(text: str) -> None:
    unit = render.template(
        "/etc/systemd/system/slurmd.service.d/options.conf", nodes=[], flags=[text]
    )
    found = re.search(r'^Environment=SLURMD_OPTIONS="((?:[^"\\%]|\\.|%%)*)"$', unit, re.MULTILINE)
    assert found
    assert re.sub(r"\\(.)|%%", lambda match: match[1] or "%", found[1]) == text


@given(TEXTS)
@example('/a" b')
@example("\\")
def test_slurms_files_get_a_scenarios_values_unchanged(text: str) -> None:
    try:
        read = scenario_of({"Comment": text})
    except ValueError:
        assert '"' in text, "nothing else is refused"
        return
    if re.fullmatch('"[^"]*"', text):  # the user's own quotes
        text = text[1:-1]
    value = read.clusters["c"].options["Comment"]
    (line,) = conf.read(
        render.template("/etc/slurm/cgroup.conf", options={"Comment": value}).splitlines()[1]
    )
    assert [(pair.key, pair.value) for pair in line.pairs] == [("Comment", text)]
    assert line.rest is None


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="needs systemd-tmpfiles")
@pytest.mark.parametrize(
    "name", ["plain", "a b", "it's", 'say "x"', "back\\slash", "100%h", "$(touch evil)"]
)
def test_tmpfiles_create_the_directories_that_the_scenario_names(tmp_path: Path, name: str) -> None:
    directories = {f"/{name}": (str(os.getuid()), "0700")}
    config = tmp_path / "slurm.conf"
    config.write_text(
        render.template("/etc/tmpfiles.d/slurm.conf", directories=directories.items(), devices=[])
    )
    (tmp_path / "root").mkdir()
    subprocess.run(["systemd-tmpfiles", "--create", f"--root={tmp_path}/root", config], check=True)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [name]


def test_packet_filter_accepts_only_port_numbers() -> None:
    plan = make_plan(
        "c", scenario_of({"SrunPortRange": "1-65535 } accept; tcp dport { 1"}), OWN_MACHINES
    )
    with pytest.raises(ValueError, match="invalid literal"):
        packet_filters.between_sites(plan, {"ctl": "10.0.0.1", "n1": "10.0.0.2"})


LAB = """
clusters:
  lab:
    controller: ctl
    nodes: [{name: n1, provision: power}, {name: d1, OF_NODE}]
    options: {OF_CLUSTER}
accounting: {slurmdbd: {OF_SLURMDBD}}
"""


@pytest.mark.parametrize(
    ("place", "text", "problem"),
    [
        (
            "OF_CLUSTER",
            'SlurmUser: "slurm\'; touch X"',
            'options.SlurmUser: "slurm\'; touch X" is not the name of a user',
        ),
        (
            "OF_CLUSTER",
            'SrunPortRange: "1-2 } accept"',
            "'1-2 } accept' is not a port or a range such as 6817-6820",
        ),
        ("OF_CLUSTER", 'slurmdport: "6818; x"', "is not a port"),
        ("OF_CLUSTER", 'ResumeTimeout: "60}; import os"', "is not a number of seconds"),
        (
            "OF_CLUSTER",
            'StateSaveLocation: "/var/a b"',
            "is not an absolute path of letters, digits",
        ),
        (
            "OF_CLUSTER",
            "StateSaveLocation: /var/$USER",
            "is not an absolute path of letters, digits",
        ),
        ("OF_CLUSTER", "SlurmdLogFile: slurmd.log", "is not an absolute path of letters, digits"),
        ("OF_CLUSTER", r'Epilog: "/bin/\x1b[2J"', r"has a control character ('\x1b')"),
        ("OF_CLUSTER", r'"Epi\x7flog": x', r"has a control character ('\x7f')"),
        (
            "OF_CLUSTER",
            "Comment: 'a \" b'",
            "cannot hold a value with both blanks and a double quote",
        ),
        ("OF_SLURMDBD", 'StorageLoc: "x; DROP"', "is not the name of a database"),
        ("OF_SLURMDBD", r'StoragePass: "a\nb"', r"has a control character ('\n')"),
        (
            "OF_NODE",
            'dynamic: true, options: {Reason: "it\'s"}',
            "is passed to slurmd -Z: no blanks, quotes",
        ),
    ],
)
def test_value_that_a_rendered_file_cannot_hold_is_refused_at_its_place(
    tmp_path: Path, place: str, text: str, problem: str
) -> None:
    path = tmp_path / "lab.yml"
    lab = LAB.replace(place, text)
    for other in ("OF_CLUSTER", "OF_NODE", "OF_SLURMDBD"):
        lab = lab.replace(f", {other}", "").replace(other, "")
    path.write_text(lab)
    with pytest.raises(ScenarioError) as caught:
        scenario.load(path)
    assert problem in str(caught.value)


def test_places_in_a_scenarios_files_have_lines(tmp_path: Path) -> None:
    path = tmp_path / "lab.yml"
    cluster = r'{controller: h, nodes: [{name: n}], files: {gres.conf: "a\n\tb\r\n"}}'
    path.write_text(f'description: "a\\nb"\nclusters: {{c: {cluster}}}\n')
    assert scenario.load(path)


def test_log_and_pid_files_may_have_a_dollar_sign_which_slurm_keeps(tmp_path: Path) -> None:
    paths = {"SlurmctldLogFile": "/home/$USER/ctld.log", "SlurmdPidFile": "/run/$USER/d.pid"}
    text = "".join(f"      {name}: {path}\n" for name, path in paths.items())
    path = tmp_path / "scenario.yml"
    path.write_text(
        f"clusters:\n  c:\n    controller: ctl\n    options:\n{text}    nodes:\n      - name: n1\n"
    )
    conf = make_plan("x", scenario.load(path), OWN_MACHINES).slurm_conf("c")
    assert {name: conf[name] for name in paths} == paths
