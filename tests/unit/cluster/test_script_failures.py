"""Failed scripts in the logs of each release."""

from __future__ import annotations

from harness.cluster import script_failures

CONF = {
    "Prolog": "/etc/slurm/prolog.d/*",
    "Epilog": "/etc/slurm/epilog",
    "PrologSlurmctld": "/opt/ctl.sh",
    "HealthCheckProgram": "/opt/health",
    "TaskProlog": "/opt/task",
}
SCRIPTS = {
    "/etc/slurm/prolog.d/10-a": "#!/bin/sh\n",
    "/etc/slurm/prolog.d/20-b": "#!/bin/sh\necho card 3 is broken\n",
    "/etc/slurm/prolog.d/30-c": "#!/bin/sh\n",
    "/opt/ctl.sh": "",
    "/opt/health": "",
}
AT = "[2026-11-23T22:59:30.032] "


def read(*lines: str) -> list[str]:
    return [str(failure) for failure in script_failures.read(lines, CONF, SCRIPTS)]


def test_log_that_names_scripts() -> None:
    assert read(
        f"{AT}SCRIPT: run_command:script=/etc/slurm/prolog.d/10-a, resp:",
        "checking",
        "no fan",
        "",
        f"{AT}error: prolog failed: rc:7 output:checking",
        "no fan",
        "",
        f"{AT}error: [job 4] prolog failed status=7:0",
    ) == [
        "/etc/slurm/prolog.d/10-a (prolog) failed with exit code 7; the end of its output: "
        "checking | no fan"
    ]


def test_log_without_names_leaves_the_scripts_that_may_have_failed() -> None:
    failed = "(prolog) failed with exit code 1"
    assert read(f"{AT}error: prolog failed: rc:1 output:card 3 is broken") == [
        f"/etc/slurm/prolog.d/20-b {failed}; the end of its output: card 3 is broken"
    ]
    assert read(f"{AT}error: prolog failed: rc:1 output:") == [
        "one of /etc/slurm/prolog.d/10-a, /etc/slurm/prolog.d/20-b, /etc/slurm/prolog.d/30-c "
        + failed
    ]


def test_log_of_20_11_with_the_output_in_the_journal() -> None:
    printed = "printed: 2026-11-23T{}.123456+0000 copy1 slurmd[42]: {}"
    assert read(
        f"{AT}error: /etc/slurm/prolog.d/10-a: exited with status 0x0300",
        printed.format("22:59:20", "of an earlier script"),
        printed.format("22:59:29", "no fan: stopped"),
        printed.format("22:59:30", "slurmd: error: its own"),
        printed.format("22:59:40", "of a later script"),
    ) == [
        "/etc/slurm/prolog.d/10-a (Prolog) failed with exit code 3; the end of its output: "
        "no fan: stopped"
    ]


def test_other_kinds_of_scripts() -> None:
    assert read(
        f"{AT}error: health_check failed: rc:2 output:sick",
        f"{AT}SCRIPT: run_command:script=/opt/ctl.sh, resp:",
        "no license",
        f"{AT}error: _run_script: JobId=5 PrologSlurmctld exit status 9:0",
        f"{AT}[5.0] error: TaskProlog failed status=256",
    ) == [
        "/opt/health (health_check) failed with exit code 2; the end of its output: sick",
        "/opt/ctl.sh (prolog_slurmctld) failed with exit code 9; the end of its output: no license",
        "/opt/task (TaskProlog) failed with exit code 1",
    ]
