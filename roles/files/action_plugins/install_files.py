"""Install all files of a host, with a program that needs only Python's standard library there.

A module would include Ansible's library, which Python compiles again for each task on each host.
"""

import json
import shlex
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

PROGRAM = Path(__file__).parents[1] / "files" / "install_files.py"


class ActionModule(ActionBase):
    """`payload` is a JSON file with the host's files.

    `run` are units to start once these are installed.

    Returns the changed paths and, as `unit_actions`, what systemctl must do with the units in
    `later`, because they are not running or because their files changed.
    """

    def run(self, tmp=None, task_vars=None):
        """Run the program on the host."""
        super().run(tmp, task_vars)
        arguments = self._task.args
        units = [json.dumps(arguments[which]) for which in ("run", "later")]
        command = [task_vars["ansible_python_interpreter"], "-c", PROGRAM.read_text(), *units]
        payload = Path(arguments["payload"]).read_bytes()
        result = self._low_level_execute_command(shlex.join(command), in_data=payload)
        if result["rc"]:
            raise AnsibleActionFail(
                "the files could not be installed", result={"stderr": result["stderr"]}
            )
        return json.loads(result["stdout"])
