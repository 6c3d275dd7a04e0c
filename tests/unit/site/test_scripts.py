"""The scripts of a site bundle in its rehearsal copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fakes import packed
from harness import cli, scenario
from harness.capabilities import CONTAINERS, OWN_MACHINES
from harness.plan import make_plan
from harness.render import render
from harness.rundir import RunDir
from harness.site import importer

SLURM_CONF = """\
ClusterName=site
SlurmctldHost=ctl
NodeName=n[1-2] CPUs=2 RealMemory=500
PartitionName=all Nodes=ALL Default=YES
JobSubmitPlugins=require_timelimit,lua
CliFilterPlugins=lua,site_own
Prolog=/opt/slurm/prolog.d/*
Epilog=/opt/slurm/epilog
TaskProlog=task.sh
MailProg=/usr/bin/mail
DebugFlags=Backfill
"""
FILES = {
    "files/opt/slurm/slurm.conf": SLURM_CONF,
    "files/opt/slurm/job_submit.lua": "function slurm_job_submit() return 0 end\n",
    "files/opt/slurm/cli_filter.lua": 'local posix = require "posix"\n',
    "files/opt/slurm/prolog.d/10-a": (
        "#!/bin/bash\n. /opt/slurm/lib.sh\nnote x\n/usr/bin/gpu -L\n/usr/bin/cat x\n"
    ),
    "files/opt/slurm/prolog.d/20-b": "#!/bin/sh\nif true; then\necho $(\n",
    "files/opt/slurm/prolog.d/.hidden": "#!/bin/sh\n",
    "files/opt/slurm/lib.sh": "note() { lctl ping; /opt/bin/squeue; }\r\n",
    "files/opt/slurm/epilog": "#!/bin/ksh\n",
    "files/opt/slurm/task.sh": "#!/usr/bin/env python3\nprint('\u00e4')\n",
    "output/version.txt": "slurm-wlm 24.11.5\n",
}
MANIFEST = {
    "format": 1,
    "configuration": "/opt/slurm",
    "files": [{"file": "files/opt/slurm/prolog.d/20-b", "mode": "0640"}],
    "replaced": [{"file": "files/opt/slurm/lib.sh", "line": 1, "what": "a password"}],
}

Import = Callable[..., tuple[dict[str, Any], list[str]]]


def bundle(directory: Path, *links: tuple[str, str], **changed: str) -> Path:
    """Write a bundle in which some files, named by their last part, have a different text."""
    files = {**FILES, "manifest.json": json.dumps(MANIFEST)}
    files |= {name: changed.get(name.rpartition("/")[2], text) for name, text in files.items()}
    return packed(directory / "site.tar.gz", files, *links)


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Return a rehearsal copy's cluster and the notes on it."""

    def run(*links: tuple[str, str], **changed: str) -> tuple[dict[str, Any], list[str]]:
        imported = importer.import_site([bundle(tmp_path, *links, **changed)], None, 1)
        return imported.data["clusters"]["site"], imported.notes

    return run


def test_scripts_are_at_their_paths_on_the_hosts_that_run_them(imported: Import) -> None:
    cluster, _ = imported()
    assert {
        path: (script["hosts"], script["mode"]) for path, script in cluster["scripts"].items()
    } == {
        "/etc/slurm/job_submit.lua": ("controllers", "0755"),
        "/etc/slurm/cli_filter.lua": ("all", "0755"),
        "/opt/slurm/prolog.d/10-a": ("nodes", "0755"),
        "/opt/slurm/prolog.d/20-b": ("nodes", "0644"),
        "/opt/slurm/lib.sh": ("nodes", "0755"),
        "/etc/slurm/task.sh": ("nodes", "0755"),
    }
    options = cluster["options"]
    assert options["Prolog"] == "/opt/slurm/prolog.d/*"
    assert options["TaskProlog"] == "task.sh"
    assert options["Epilog"] == "/opt/slurm/epilog"
    assert options["MailProg"] == "/bin/true"
    assert options["JobSubmitPlugins"] == "require_timelimit,lua"
    assert "CliFilterPlugins" not in options
    assert options["DebugFlags"] == "Backfill,Script"


def test_programs_that_the_hosts_lack_have_stand_ins(imported: Import) -> None:
    cluster, _ = imported()
    assert cluster["stand_ins"] == {
        "/opt/slurm/epilog": None,  # the hosts have no ksh
        "/usr/bin/cat": "/bin/cat",  # which is the same program, except in Debian 11
        "/usr/bin/gpu": None,
        "/usr/bin/lctl": None,
        "/opt/bin/squeue": "/usr/bin/squeue",
    }


def test_import_says_what_runs_and_what_does_not(imported: Import) -> None:
    _, notes = imported()
    expected = {
        "left out: CliFilterPlugins=lua: /opt/slurm/cli_filter.lua:1: the hosts have no module "
        "posix; the cluster's `packages` can add one",
        "left out: CliFilterPlugins=site_own: the hosts have no such plugin",
        "runs: JobSubmitPlugins=lua: /etc/slurm/job_submit.lua",
        "runs: Prolog=/opt/slurm/prolog.d/*: /opt/slurm/prolog.d/10-a, /opt/slurm/prolog.d/20-b",
        "runs: TaskProlog=task.sh: /etc/slurm/task.sh",
        "finding: /opt/slurm/prolog.d/20-b: Prolog names it, but it is not executable",
        "replaced: /opt/slurm/epilog: the hosts have no /bin/ksh, which runs it; a program that "
        "does nothing is used",
        "replaced: /opt/slurm/lib.sh: 1 secrets, by harness-collect",
        "copied: /opt/slurm/lib.sh: named in /opt/slurm/prolog.d/10-a",
        "stand-in: /usr/bin/gpu: a program that only logs the call; called at "
        "/opt/slurm/prolog.d/10-a:4",
        "replaced: MailProg=/usr/bin/mail: replaced by /bin/true",
    }
    assert expected <= {*notes}
    assert not [note for note in notes if "/bin/cat" in note]
    assert not [note for note in notes if "not a Slurm file" in note and "hidden" not in note]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash checks the syntax")
def test_script_that_does_not_parse_is_reported_with_its_place(imported: Import) -> None:
    _, notes = imported()
    places = [note.split(": ")[1] for note in notes if note.startswith("finding:")]
    assert any(place.startswith("/opt/slurm/prolog.d/20-b:") for place in places)


def test_scripts_are_only_read(imported: Import, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    imported(**dict.fromkeys(("10-a", "lib.sh"), f"#!/bin/bash\ntouch {mark}\n$(touch {mark})\n"))
    assert not mark.exists()


def test_links_out_of_the_bundle_are_not_followed(imported: Import, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("#!/bin/sh\n# mine\n")
    cluster, _ = imported(("files/opt/slurm/prolog.d/30-c", str(secret)))
    assert "mine" not in str(cluster["scripts"])


@pytest.mark.parametrize(
    ("value", "text", "problem"),
    [
        ("/opt/slurm/slurm.key", "", ""),
        ("/opt/slurm/prolog.d/10-a", "#!/bin/sh\n# %secret:munge_key%\n", "a placeholder"),
    ],
)
def test_scripts_that_cannot_be_copied_are_left_out(
    imported: Import, value: str, text: str, problem: str
) -> None:
    conf = SLURM_CONF.replace("/opt/slurm/prolog.d/*", value)
    changed = {"slurm.conf": conf, "10-a": text}
    cluster, notes = imported(**changed)
    assert cluster["options"]["Prolog"] == "/bin/true"
    assert any(problem in note for note in notes)


def test_scenario_and_its_files_render_to_the_sites_scripts(tmp_path: Path) -> None:
    output = tmp_path / "copy.yml"
    arguments = ["import", str(bundle(tmp_path)), "--rehearsal", "1", "-o", str(output)]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "copy.files/opt/slurm/prolog.d/10-a").stat().st_mode & 0o777 == 0o755
    plan = make_plan("copy", scenario.load(output), CONTAINERS)
    files = {file.path: file for file in render(plan)["copy1"]}
    for path in ("/opt/slurm/prolog.d/10-a", "/opt/slurm/lib.sh"):
        assert files[path].text == FILES[f"files{path}"]
    assert files["/opt/slurm/prolog.d/20-b"].mode == "0644"
    links = files["/etc/tmpfiles.d/slurm-stand-ins.conf"].text
    assert "L /opt/bin/squeue - - - - /usr/bin/squeue\n" in links
    run = RunDir.create(tmp_path / "runs", output, plan, "docker")
    shutil.rmtree(tmp_path / "copy.files")
    scripts = plan.scenario.clusters["site"].scripts
    assert run.plan().scenario.clusters["site"].scripts == scripts
    again = CliRunner().invoke(cli.app, arguments)
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    assert not (tmp_path / "copy.files").exists()


def test_own_machines_get_no_stand_ins(tmp_path: Path) -> None:
    output = tmp_path / "copy.yml"
    importer.write(output, importer.import_site([bundle(tmp_path)], None, 1))
    plan = make_plan("copy", scenario.load(output), OWN_MACHINES)
    paths = {file.path for file in render(plan)["copy1"]}
    assert "/opt/slurm/lib.sh" in paths
    assert not {path for path in paths if "stand-in" in path}
