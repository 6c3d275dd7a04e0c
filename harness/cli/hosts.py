"""Commands for a run's hosts: open a shell, run a command, copy files."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import DEFAULT_RUNS, RunName, Runs
from harness.cli.opening import find_host, open_run
from harness.cli.printing import out
from harness.errors import UsageError

app = typer.Typer()
# Where a host has its slurm.conf: its own file, or the one fetched from slurmctld.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
# Runs a command with the environment and directory of a login.
_AT_HOME = (
    "HOME=$(getent passwd {user} | cut -d: -f6) USER={user} LOGNAME={user}; "
    "export HOME USER LOGNAME; "
    'cd "$HOME" 2> /dev/null || cd /; exec {line}'
)


@app.command()
def ssh(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open a shell on a host."""
    run = open_run(runs, which)
    raise typer.Exit(
        subprocess.run(run.ssh.command(find_host(run, host).name, tty=True), check=False).returncode
    )


@app.command()
def shell(
    host: Annotated[
        str | None,
        typer.Argument(
            help="The host; default: the first cluster's controller.", show_default=False
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", "-u", help="A user of the scenario; default: the first.", show_default=False
        ),
    ] = None,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open a shell as a user of the scenario; `echo squeue | harness shell` runs one command."""
    from harness.ssh import as_user

    run = open_run(runs, which)
    users = list(run.plan.scenario.users)
    if not users:
        raise UsageError(f"{run.directory.id} has no users", hint="give the scenario `users:`")
    if user not in {None, *users}:
        raise UsageError(
            f"no user {user} in {run.directory.id}", hint=f"its users are {', '.join(users)}"
        )
    on = find_host(run, host or next(iter(run.plan.scenario.clusters.values())).controller)
    script = f"for SLURM_CONF in {' '.join(_SLURM_CONFS)}; do [ ! -e $SLURM_CONF ] || break; done; "
    command = run.ssh.command(
        on.name,
        [as_user(user or users[0], f"{script}export SLURM_CONF; exec bash -l")],
        tty=sys.stdin.isatty(),
    )
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def exec_(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    command: Annotated[
        list[str], typer.Argument(help="The command, after --.", show_default=False)
    ],
    user: Annotated[str, typer.Option("--user", help="The account that runs it.")] = "root",
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Run it in the background; print the name of its systemd unit."
        ),
    ] = False,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Run a command on a host, in the user's home directory: `harness exec HOST -- sinfo -N`.

    A detached command writes to the host's journal: `harness exec HOST -- journalctl --unit UNIT`.
    """
    run = open_run(runs, which)
    name = find_host(run, host).name
    if user != "root" and run.ssh.run(name, ["id", user], check=False).exit_code != 0:
        raise UsageError(f"{name} has no user {user}")
    if detach:
        unit = f"harness-exec-{secrets.token_hex(4)}"
        options = ["--quiet", "--collect", f"--unit={unit}", f"--property=User={user}"]
        # "-": a missing directory is not an error, because daemons' accounts have no home.
        home = ["--property=WorkingDirectory=-~"]
        run.ssh.run(name, ["systemd-run", *options, *home, "--", *command])
        out.print(unit)
        return
    line = shlex.join(command)
    if user != "root":
        # Daemons' accounts have no shell, and some have no home.
        line = shlex.join(
            ["runuser", "-u", user, "--", "sh", "-c", _AT_HOME.format(user=user, line=line)]
        )
    raise typer.Exit(subprocess.run(run.ssh.command(name, [line]), check=False).returncode)


@app.command("cp")
def cp(
    source: Annotated[
        str,
        typer.Argument(help="A file or directory: a local PATH, or HOST:PATH.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(help="Where to copy it: a local PATH, or HOST:PATH.", show_default=False),
    ],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Copy a file or directory to a host or from it, as `cp -r` does.

    On a host, root owns the copy.
    """
    from harness import transfer

    from_host, from_path = _place(source)
    to_host, to_path = _place(target)
    if bool(from_host) == bool(to_host):
        raise UsageError(
            "one argument must be HOST:PATH, the other a local PATH",
            hint="harness cp job.sh ctl:/root",
        )
    if not from_path or not to_path:
        raise UsageError(
            f"{from_host or to_host}: has no path", hint=f"{from_host or to_host}:/root"
        )
    run = open_run(runs, which)
    if to_host:
        transfer.put(run.ssh, find_host(run, to_host).name, Path(from_path), to_path)
    else:
        transfer.get(run.ssh, find_host(run, from_host).name, from_path, Path(to_path))


def _place(text: str) -> tuple[str, str]:
    """Split HOST:PATH; text with a slash before the colon is a path on this machine."""
    host, colon, path = text.partition(":")
    return (host, path) if colon and "/" not in host else ("", text)
