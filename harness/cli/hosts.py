"""The verbs of a run's hosts: run a command there, copy files to them and from them."""

from __future__ import annotations

import secrets
import shlex
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from harness import transfer
from harness.cli.arguments import DEFAULT_RUNS, RunName, Runs
from harness.cli.opening import find_host, open_run
from harness.cli.printing import out
from harness.errors import UsageError

app = typer.Typer()


@app.command("exec", context_settings={"ignore_unknown_options": True})
def exec_(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    command: Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)],
    user: Annotated[str, typer.Option("--user", help="An account of the host.")] = "root",
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for its end; prints the name of its systemd unit.")
    ] = False,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Run a command on a host, in the user's home: `harness exec HOST -- sinfo -N`.

    What a detached command prints is in the host's journal: `harness exec HOST -- journalctl --unit UNIT`.
    """
    live = open_run(runs, which)
    on = find_host(live, host).name
    if user != "root" and live.ssh.run(on, ["id", user], check=False).exit_code != 0:
        raise UsageError(f"{on} has no user {user}")
    if detach:
        unit = f"harness-exec-{secrets.token_hex(4)}"
        options = ["--quiet", "--collect", f"--unit={unit}", f"--property=User={user}"]
        # The directory is `-`, which may be missing, because daemons' accounts have none.
        home = ["--property=WorkingDirectory=-~"]
        live.ssh.run(on, ["systemd-run", *options, *home, "--", *command])
        out.print(unit)
        return
    line = shlex.join(command)
    if user != "root":
        # Daemons' accounts have no shell and perhaps no home.
        line = shlex.join(["runuser", "-u", user, "--", "sh", "-c", _AT_HOME.format(user=user, line=line)])
    raise typer.Exit(subprocess.run(live.ssh.command(on, [line]), check=False).returncode)


@app.command("cp")
def cp(
    source: Annotated[str, typer.Argument(help="A file or directory: PATH here, or HOST:PATH.", show_default=False)],
    target: Annotated[str, typer.Argument(help="Where it goes: PATH here, or HOST:PATH.", show_default=False)],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Copy a file or directory to a host or from it, as `cp -r` does; on a host it is root's."""
    from_host, from_path = _place(source)
    to_host, to_path = _place(target)
    if bool(from_host) == bool(to_host):
        raise UsageError("one of the two is HOST:PATH, the other a PATH here", hint="harness cp job.sh ctl:/root")
    live = open_run(runs, which)
    if to_host:
        transfer.put(live.ssh, find_host(live, to_host).name, Path(from_path), to_path)
    else:
        transfer.get(live.ssh, find_host(live, from_host).name, from_path, Path(to_path))


# Of a shell of the user's own: it knows where the home is.
_AT_HOME = (
    "HOME=$(getent passwd {user} | cut -d: -f6) USER={user} LOGNAME={user}; export HOME USER LOGNAME; "
    'cd "$HOME" 2> /dev/null || cd /; exec {line}'
)


def _place(text: str) -> tuple[str, str]:
    """Split HOST:PATH; a path with a slash before its colon is one here."""
    host, colon, path = text.partition(":")
    return (host, path) if colon and "/" not in host else ("", text)
