"""Put a host's whole set of files in place in one go, and say which units must hear of it.

Standard input is a JSON list of them, each with path, text, owner, group, mode, and the unit that reads it with what
systemctl does for that ("restart", "reload"). The arguments are JSON lists of units, all of which are enabled: those to
start when the files are in place, which hear of theirs at once, and those that are started later. Each file is written
atomically; files that an earlier call put there and this one does not name are removed; users and directories that
sysusers.d and tmpfiles.d files describe are made.

With a third argument, "look", it exits with 1 if there is something to do, and does nothing.
"""

import grp
import json
import os
import pwd
import subprocess
import sys
import tempfile

RECORD = "/var/lib/slurm-harness/files.json"
# A file for each unit that has not heard of its files yet, with the action of these; after a boot it has.
PENDING = "/run/slurm-harness"


def differs(file):
    """Whether the file on the host is not the wanted one; a symbolic link to one is not."""
    if os.path.islink(file["path"]):
        return True
    try:
        with open(file["path"], encoding="utf-8") as there:
            if there.read() != file["text"]:
                return True
        status = os.stat(file["path"])
    except FileNotFoundError:
        return True
    owner = (pwd.getpwnam(file["owner"]).pw_uid, grp.getgrnam(file["group"]).gr_gid)
    return (status.st_uid, status.st_gid, status.st_mode & 0o7777) != (*owner, int(file["mode"], 8))


def write(file):
    """Put one file in place; whoever reads it sees the old text or the new one."""
    directory = os.path.dirname(file["path"])
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(file["text"])
        os.chown(temporary, pwd.getpwnam(file["owner"]).pw_uid, grp.getgrnam(file["group"]).gr_gid)
        os.chmod(temporary, int(file["mode"], 8))
        os.replace(temporary, file["path"])
    except BaseException:
        os.unlink(temporary)
        raise


def earlier():
    """What an earlier call put in place: path -> [unit, action]."""
    try:
        with open(RECORD, encoding="utf-8") as record:
            return json.load(record)
    except FileNotFoundError:
        return {}


def left():
    """What an interrupted call left to do: pairs of unit and action."""
    for unit in os.listdir(PENDING) if os.path.isdir(PENDING) else ():
        with open(os.path.join(PENDING, unit), encoding="utf-8") as pending:
            yield unit, pending.read()


def without(name, value, units):
    """Return the units that have another value of this property."""
    show = ["systemctl", "show", "--value", f"--property={name}", *units]
    said = subprocess.run(show, check=True, stdout=subprocess.PIPE, text=True).stdout
    states = said.split("\n")[::2]  # a line for each unit, with an empty one between
    return [unit for number, unit in enumerate(units) if states[number] != value]


def record_of(files):
    """What a later call has to know: path -> [unit, action]."""
    return {file["path"]: [file["unit"], file["action"]] for file in files}


def has_something_to_do(files, units):
    """Whether a call would change a file, or do something with a unit."""
    return bool(
        any(map(differs, files))
        or earlier() != record_of(files)
        or list(left())
        or without("UnitFileState", "enabled", units)
        or without("ActiveState", "active", units)
    )


def execute(*words):
    """Run a command; standard output is for what this program tells."""
    subprocess.run(words, check=True, stdout=sys.stderr)


def install(files, units, later):
    """Put files in place, run units, and tell what changed and what is to be done with others."""
    changed = [file for file in files if differs(file)]
    before = earlier()
    now = record_of(files)
    gone = [path for path in before if path not in now]
    paths = [file["path"] for file in changed]
    actions = {}
    for unit, action in [now[path] for path in paths] + [before[path] for path in gone] + list(left()):
        if unit and actions.get(unit) != "restart":
            actions[unit] = action
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
        write({"path": RECORD, "text": json.dumps(now), "owner": "root", "group": "root", "mode": "0644"})
    disabled = without("UnitFileState", "enabled", units + later)
    if disabled:
        execute("systemctl", "enable", "--quiet", *disabled)  # systemd reads all its units again
    elif any(path.startswith("/etc/systemd/") for path in [*paths, *gone]):
        execute("systemctl", "daemon-reload")
    if any(path.startswith("/etc/sysusers.d/") for path in paths):
        execute("systemd-sysusers")
    for path in paths:
        if path.startswith("/etc/tmpfiles.d/"):
            execute("systemd-tmpfiles", "--create", path)
    for unit in without("ActiveState", "active", units + later):
        actions.setdefault(unit, "start")
    actions = {unit: action.replace("reload", "reload-or-restart") for unit, action in actions.items()}
    run = [unit for unit in units if unit in actions]
    for unit in run:
        execute("systemctl", actions.pop(unit), unit)
        execute("rm", "--force", os.path.join(PENDING, unit))
    paths += gone
    return {"changed": bool(paths or disabled or run), "paths": paths, "unit_actions": actions}


if __name__ == "__main__":
    wanted, to_start, for_later = json.load(sys.stdin), *map(json.loads, sys.argv[1:3])
    if sys.argv[3:] == ["look"]:
        sys.exit(has_something_to_do(wanted, to_start + for_later))
    print(json.dumps(install(wanted, to_start, for_later)))
