"""Install all files of a host in one call, and report which units must restart or reload.

Standard input is a JSON list of files, each with path, text, owner, group, mode, the unit that
reads it and the action that systemctl needs for that ("restart" or "reload"). The arguments are
JSON lists of units, which are all enabled: units to start or restart right after the files are
installed, and units that are started later. Each file is written atomically. Files of an earlier
call that this call does not name are removed. Users and directories in sysusers.d and tmpfiles.d
are created.

With a third argument, "reload", it changes nothing, and exits with 1, if a unit must be enabled,
started or restarted, or if users, directories or units are among the files.
"""

import fcntl
import grp
import json
import os
import pwd
import subprocess
import sys
import tempfile

RECORD = "/var/lib/slurm-harness/files.json"
# A file with the pending action for each unit that has not read its files yet; a boot removes them.
PENDING = "/run/slurm-harness"
# Files that need more than a unit that reads them.
SYSTEM = ("/etc/systemd/", "/etc/sysusers.d/", "/etc/tmpfiles.d/")


def differs(file):
    """Whether the file on the host differs; a symbolic link always does."""
    if os.path.islink(file["path"]):
        return True
    try:
        with open(file["path"], encoding="utf-8", errors="surrogateescape", newline="") as current:
            if current.read() != file["text"]:
                return True
        status = os.stat(file["path"])
    except FileNotFoundError:
        return True
    owner = (pwd.getpwnam(file["owner"]).pw_uid, grp.getgrnam(file["group"]).gr_gid)
    return (status.st_uid, status.st_gid, status.st_mode & 0o7777) != (*owner, int(file["mode"], 8))


def write(file):
    """Write one file atomically: readers see the old text or the new one."""
    directory = os.path.dirname(file["path"])
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as new:
            new.write(file["text"])
        os.chown(temporary, pwd.getpwnam(file["owner"]).pw_uid, grp.getgrnam(file["group"]).gr_gid)
        os.chmod(temporary, int(file["mode"], 8))
        os.replace(temporary, file["path"])
    except BaseException:
        os.unlink(temporary)
        raise


def earlier():
    """The files of an earlier call: path -> [unit, action]."""
    try:
        with open(RECORD, encoding="utf-8") as record:
            return json.load(record)
    except FileNotFoundError:
        return {}


def left():
    """What an interrupted call did not finish: pairs of unit and action."""
    for unit in os.listdir(PENDING) if os.path.isdir(PENDING) else ():
        with open(os.path.join(PENDING, unit), encoding="utf-8") as pending:
            yield unit, pending.read()


def not_enabled_or_active(units):
    """Return the units that are not enabled, and those that are not active."""
    show = ["systemctl", "show", "--property=UnitFileState,ActiveState", *units]
    output = subprocess.run(show, check=True, stdout=subprocess.PIPE, text=True).stdout
    states = [state.split("\n") for state in output.split("\n\n")]
    return [
        [unit for number, unit in enumerate(units) if wanted not in states[number]]
        for wanted in ("UnitFileState=enabled", "ActiveState=active")
    ]


def record_of(files):
    """What later calls need to know: path -> [unit, action]."""
    return {file["path"]: [file["unit"], file["action"]] for file in files}


def execute(*words):
    """Run a command; standard output is reserved for the result of this program."""
    subprocess.run(words, check=True, stdout=sys.stderr)


def install(files, units, later, only_reload):
    """Install files, start units, and return what changed and the actions for other units.

    With `only_reload`, return None and change nothing unless units need only to reload.
    """
    # `down` waits for this lock before it restores the host, until this program ends.
    os.makedirs(os.path.dirname(RECORD), exist_ok=True)
    fcntl.flock(os.open(os.path.dirname(RECORD), os.O_RDONLY), fcntl.LOCK_EX)
    changed = [file for file in files if differs(file)]
    before = earlier()
    now = record_of(files)
    gone = [path for path in before if path not in now]
    paths = [file["path"] for file in changed]
    actions = {}
    for unit, action in (
        [now[path] for path in paths] + [before[path] for path in gone] + list(left())
    ):
        if unit and actions.get(unit) != "restart":
            actions[unit] = action
    disabled, inactive = not_enabled_or_active(units + later)
    if only_reload and (
        disabled
        or inactive
        or set(actions.values()) - {"reload"}
        or any(path.startswith(SYSTEM) for path in paths + gone)
    ):
        return None
    os.makedirs(PENDING, exist_ok=True)
    for unit, action in actions.items():
        with open(os.path.join(PENDING, unit), "w", encoding="utf-8") as pending:
            pending.write(action)
    for file in changed:
        write(file)
    for path in gone:
        if os.path.exists(path):
            os.unlink(path)
    if before != now:
        write(
            {
                "path": RECORD,
                "text": json.dumps(now),
                "owner": "root",
                "group": "root",
                "mode": "0644",
            }
        )
    if disabled:
        execute("systemctl", "enable", "--quiet", *disabled)  # this also reloads all units
    elif any(path.startswith("/etc/systemd/") for path in [*paths, *gone]):
        execute("systemctl", "daemon-reload")
    if any(path.startswith("/etc/sysusers.d/") for path in paths):
        execute("systemd-sysusers")
    for path in paths:
        if path.startswith("/etc/tmpfiles.d/"):
            execute("systemd-tmpfiles", "--create", path)
    for unit in inactive:
        actions.setdefault(unit, "start")
    actions = {
        unit: action.replace("reload", "reload-or-restart") for unit, action in actions.items()
    }
    run = [unit for unit in units if unit in actions]
    for unit in run:
        execute("systemctl", actions.pop(unit), unit)
        execute("rm", "--force", os.path.join(PENDING, unit))
    paths += gone
    return {"changed": bool(paths or disabled or run), "paths": paths, "unit_actions": actions}


if __name__ == "__main__":
    wanted, to_start, for_later = json.load(sys.stdin), *map(json.loads, sys.argv[1:3])
    result = install(wanted, to_start, for_later, sys.argv[3:] == ["reload"])
    if result is None:
        sys.exit(1)
    print(json.dumps(result))
