#!/usr/bin/python
"""Put a host's whole set of files in place in one go, and say which units must hear of it."""

import grp
import json
import os
import pwd
import tempfile

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: install_files
short_description: Put a host's whole set of files in place
description:
  - Writes each file atomically with its owner and mode, removes files that an earlier call put there and this one
    does not name, and creates the users and directories that sysusers.d and tmpfiles.d files describe.
options:
  files:
    description: The files, each with path, text, owner, group, mode, unit and action.
    type: list
    elements: dict
    required: true
  run:
    description: Units to enable and start when the files are in place; restarted or reloaded if theirs changed.
    type: list
    elements: str
    default: []
author: [slurm-harness]
"""

RECORD = "/var/lib/slurm-harness/files.json"
STATE = {"restart": "restarted", "reload": "reloaded"}


def differs(file):
    """Whether the file on the host is not the wanted one."""
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
    """What an earlier call put in place: path -> (unit, action)."""
    try:
        with open(RECORD, encoding="utf-8") as record:
            return json.load(record)
    except FileNotFoundError:
        return {}


def run_unit(module, unit, state):
    """Enable a unit and bring it into a state; return whether it did not run before."""
    ran = module.run_command(["systemctl", "is-active", "--quiet", unit])[0] == 0
    if ran and state != "started":
        module.run_command(["systemctl", "restart" if state == "restarted" else "reload", unit], check_rc=True)
    module.run_command(["systemctl", "enable", "--quiet", "--now", unit], check_rc=True)
    return not ran


def main():
    """Run the module."""
    spec = {name: {"type": "str"} for name in ("path", "owner", "group", "mode", "unit", "action")}
    spec["text"] = {"type": "str", "no_log": True}
    arguments = {
        "files": {"type": "list", "elements": "dict", "options": spec, "required": True},
        "run": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(arguments, supports_check_mode=True)
    files = module.params["files"]
    changed = [file for file in files if differs(file)]
    before = earlier()
    now = {file["path"]: (file["unit"], file["action"]) for file in files}
    gone = [path for path in before if path not in now]
    if not module.check_mode:
        for file in changed:
            write(file)
        for path in gone:
            if os.path.exists(path):
                os.unlink(path)
        if before != {path: list(unit) for path, unit in now.items()}:
            record = {
                "path": RECORD,
                "text": json.dumps(now),
                "owner": "root",
                "group": "root",
                "mode": "0644",
            }
            write(record)
        paths = [file["path"] for file in changed]
        if any(path.startswith("/etc/systemd/") for path in [*paths, *gone]):
            module.run_command(["systemctl", "daemon-reload"], check_rc=True)
        if any(path.startswith("/etc/sysusers.d/") for path in paths):
            module.run_command(["systemd-sysusers"], check_rc=True)
        for path in paths:
            if path.startswith("/etc/tmpfiles.d/"):
                module.run_command(["systemd-tmpfiles", "--create", path], check_rc=True)

    states = {}
    for unit, action in [now[file["path"]] for file in changed] + [before[path] for path in gone]:
        if unit and states.get(unit) != "restarted":
            states[unit] = STATE[action]
    started = []
    if not module.check_mode:
        started = [unit for unit in module.params["run"] if run_unit(module, unit, states.pop(unit, "started"))]
    paths = [file["path"] for file in changed] + gone
    module.exit_json(changed=bool(paths or started), paths=paths, unit_states=states)


if __name__ == "__main__":
    main()
