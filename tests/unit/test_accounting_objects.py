"""The program that creates accounting objects, and how it groups what one command can create."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import association_groups, render, scenario
from harness.capabilities import Capabilities
from harness.plan import make_plan
from harness.scenario import User

PROGRAM = "/usr/local/sbin/slurm-accounting-objects"
# It reads commands as sacctmgr does, and refuses to modify physics.
SACCTMGR = """#!/bin/sh
case "$*" in
--version) echo "slurm 1.2.3"; exit ;;
*show*) exit ;;
esac
echo "$*" >> {calls}
code=0
while read -r line; do
    echo "sacctmgr: $line"
    case $line in
    version) echo "slurm 1.2.3" ;;
    *"account physics"*MaxJobs*) echo " {message}"; code=1 ;;
    *) echo " Adding or Modified"; echo "$line" >> {calls} ;;
    esac
done
exit $code
"""


def users_of(**users: dict[str, Any]) -> dict[str, User]:
    return {name: User.model_validate({"uid": 2000, **facts}) for name, facts in users.items()}


@pytest.fixture
def perform(tmp_path: Path) -> Any:
    """Run the program with a sacctmgr that refuses a limit with a message."""

    def run(message: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        data = {
            "clusters": {"c": {"controller": "ctl", "nodes": [{"name": "n1"}]}},
            "accounting": {
                "host": "ctl",
                "accounts": {
                    "physics": {"options": {"MaxJobs": 3}},
                    "biology": {"options": {"Description": "all living things"}},
                },
            },
            "users": {name: {"uid": 2000, "accounts": ["physics"]} for name in ("alice",)},
        }
        containers = Capabilities(cgroups=False, own_hardware=False)
        plan = make_plan("c", scenario.Scenario.model_validate(data), containers)
        calls, fake = tmp_path / "calls", tmp_path / "sacctmgr"
        fake.write_text(SACCTMGR.format(calls=calls, message=message))
        fake.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        script = next(file.text for file in render.render(plan)["ctl"] if file.path == PROGRAM)
        done = subprocess.run(
            ["sh", "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        return done, calls.read_text().splitlines()

    return run


def test_one_sacctmgr_performs_many_commands(perform: Any, tmp_path: Path) -> None:
    done, calls = perform("Modified")
    assert done.returncode == 1
    assert done.stderr == "sacctmgr failed\n", "it exits with 1, but prints no error"
    commands = [call.strip() for call in calls if not call.startswith("--immediate")]
    assert commands == [
        "add cluster c",
        "add account physics cluster=c parent=root",
        "add account biology cluster=c parent=root",
        'modify account biology set Description="all living things"',
        "add user alice cluster=c account=physics defaultaccount=physics",
    ]
    assert calls.count("--immediate") < len(commands)
    assert {path.name for path in tmp_path.iterdir()} == {"calls", "sacctmgr"}


@pytest.mark.parametrize("message", ["error: no such limit", "something unheard of"])
def test_command_that_fails_among_many_is_named(perform: Any, message: str) -> None:
    done, _ = perform(message)
    assert done.returncode == 1
    assert done.stderr.startswith("sacctmgr --immediate modify account physics set MaxJobs=3")
    assert message in done.stderr
    assert "biology" not in done.stderr


def test_modification_without_an_effect_is_not_an_error(perform: Any) -> None:
    done, _ = perform("Nothing modified")
    assert done.returncode == 0, done.stderr


def test_users_whose_associations_are_alike_are_created_together() -> None:
    users = users_of(
        alice={"accounts": ["physics", "chemistry"]},
        bob={"accounts": ["physics", "chemistry"], "associations": {"physics": {"MaxJobs": 1}}},
        carol={"accounts": ["chemistry"]},
    )
    created = [
        (group.users, group.account, group.default_account)
        for group in association_groups.created(users)
    ]
    assert created == [
        (["alice", "bob"], "physics", "physics"),
        (["carol"], "chemistry", "chemistry"),
        (["alice", "bob"], "chemistry", "physics"),
    ]
    [changed] = association_groups.changed(users, is_late=False)
    assert (changed.users, changed.account, changed.options) == (
        ["bob"],
        "physics",
        {"MaxJobs": "1"},
    )


def test_associations_of_partitions_are_created_with_their_options() -> None:
    limits = {"accounts": ["physics"], "associations": {"physics:gpu": {"MaxJobs": 2}}}
    users = users_of(alice=limits, bob=limits)
    created = [
        (group.users, group.partition, group.options) for group in association_groups.created(users)
    ]
    assert created == [
        (["alice", "bob"], "", {}),
        (["alice", "bob"], "gpu", {"MaxJobs": "2"}),
    ]
    assert not association_groups.changed(users, is_late=False)


def test_users_with_the_same_qos_are_changed_together() -> None:
    users = users_of(
        alice={"accounts": ["physics"], "qos": ["urgent"]},
        bob={"accounts": ["chemistry"], "qos": ["urgent"]},
        carol={"qos": ["urgent"]},
    )
    assert association_groups.with_qos(users) == {("urgent",): ["alice", "bob"]}
