"""What is reported about a failed task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible_runner
import pytest

from fakes import SCENARIO, FakeProvider
from harness import deploy, lifecycle
from harness.errors import DeployError

FAILED = {"msg": "non-zero return code", "rc": 1, "stderr": ""}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (
            {**FAILED, "stdout": "added\r\nsacctmgr: fatal: x\r\n"},
            ["non-zero return code", "added", "sacctmgr: fatal: x"],
        ),
        (
            {**FAILED, "stderr": "no route", "stdout": "no route"},
            ["non-zero return code", "no route"],
        ),
        ({"msg": "the files are not in place"}, ["the files are not in place"]),
        (
            {**FAILED, "stdout": "\n".join(map(str, range(100)))},
            ["non-zero return code", *map(str, range(85, 100))],
        ),
        ({"censored": "hidden by no_log", "stdout": "sesame"}, ["hidden by no_log"]),
        (
            {**FAILED, "stdout": "StoragePass=sesame"},
            ["non-zero return code", "StoragePass=(hidden)"],
        ),
    ],
)
def test_failed_task_is_reported_with_the_last_lines_of_its_output(
    result: dict[str, Any], output: list[str]
) -> None:
    assert deploy._output(result, {}).splitlines() == output


def test_secret_cut_off_by_the_tail_is_still_hidden() -> None:
    key = "\n".join(f"line {number} of a key" for number in range(30))
    output = deploy._output(
        {**FAILED, "stdout": f"{key}\nfatal: no".replace("\n", "\r\n")}, {"ssh_key": key}
    )
    assert output == "non-zero return code\n%secret:ssh_key%\nfatal: no"


def test_error_of_a_task_names_its_output_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    password = run.directory.secrets()["munge_key"]

    def fake_run(**how: Any) -> Any:
        data = {
            "host": "single",
            "role": "accounting",
            "task": "Make objects",
            "res": {**FAILED, "stdout": password},
        }
        how["event_handler"]({"event": "runner_on_failed", "event_data": data})
        return type("Done", (), {"status": "failed"})

    monkeypatch.setattr(ansible_runner, "run", fake_run)
    with pytest.raises(DeployError) as caught:
        deploy.deploy(run.directory, run.plan, run.tree, run.ssh, print)
    assert (
        str(caught.value)
        == "single: Make objects: failed\nnon-zero return code\n%secret:munge_key%"
    )
